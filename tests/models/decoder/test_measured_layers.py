"""Layers and caches of foreign architectures, against the caches that their code really makes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import CONFIG_MAPPING, AutoConfig

from evalsuite.models.checkpoints.describe import describe
from evalsuite.models.decoder.cost import ModelCost, build_on_meta
from evalsuite.models.decoder.measured_layers import measure_layers
from tests.parity.tiny_families import FAMILIES, make_model, make_tokenizer

KINDS = {
    "gpt2": ["GPT2Attention", "GPT2Attention"],
    "gemma2": ["Gemma2Attention", "Gemma2Attention"],
    "deepseek_v3": ["DeepseekV3Attention", "DeepseekV3Attention"],
    "mamba2": ["Mamba2Mixer", "Mamba2Mixer"],
    "falcon_h1": ["FalconH1Mixer + FalconH1Attention"] * 2,
    "bamba": ["BambaMixer", "BambaAttention"],
    "nemotron_h": ["NemotronHMamba2Mixer", "NemotronHAttention", ""],
    "qwen3_5": ["Qwen3_5GatedDeltaNet", "Qwen3_5Attention"],
    "qwen3_next": ["Qwen3NextGatedDeltaNet", "Qwen3NextAttention"],
    "olmo_hybrid": ["OlmoHybridGatedDeltaNet", "OlmoHybridAttention"],
    "lfm2": ["Lfm2ShortConv", "Lfm2Attention"],
    "rwkv": [""],
}


@pytest.mark.parametrize("name", KINDS)
def test_a_measured_cache_is_the_one_that_is_made(name: str) -> None:
    family = FAMILIES[name]
    if family.model_type not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {family.title}")
    model = make_model(family).eval()
    layers = measure_layers(build_on_meta(model.config, torch.bfloat16))
    assert [layer.mixer for layer in layers] == KINDS[name]
    for length in (5, 20):  # within the windows of 7, and beyond
        with torch.no_grad():
            output = model(input_ids=torch.zeros(1, length, dtype=torch.long), use_cache=True)
        cache = (
            output["state"]
            if name == "rwkv"
            else output["past_key_values" if "past_key_values" in output else "cache_params"]
        )
        made = sum(tensor.nbytes for layer in getattr(cache, "layers", [cache]) for tensor in tensors(layer))
        assert sum(layer.cache.bytes(length, torch.float32) for layer in layers) == made


def tensors(layer: object) -> list[torch.Tensor]:
    """The floating-point tensors of the cache of a layer, or of a list of states."""
    found = []
    for value in layer if isinstance(layer, list) else vars(layer).values():
        parts = value.values() if isinstance(value, dict) else [value]
        found += [part for part in parts if isinstance(part, torch.Tensor) and part.is_floating_point()]
    return found


def test_what_can_not_be_measured_says_why() -> None:
    cost = ModelCost.of(
        AutoConfig.for_model(FAMILIES["recurrent_gemma"].model_type, **FAMILIES["recurrent_gemma"].settings)
    )
    assert cost.is_foreign
    assert cost.cache() is None
    assert cost.foreign == "its forward pass returns no cache"


@pytest.mark.parametrize(
    ("name", "layers", "cache"),
    [
        (
            "qwen3_5",
            "Qwen3_5GatedDeltaNet (a state) 0, Qwen3_5Attention (all tokens) 1",
            "64 B per token, 896 B of states",
        ),
        (
            "falcon_h1",
            "FalconH1Mixer + FalconH1Attention (all tokens, and a state) 0-1",
            "128 B per token, 5.2 KiB of states",
        ),
        (
            "recurrent_gemma",
            "3, whose mixers are not told apart",
            "not measured: its forward pass returns no",
        ),
    ],
)
def test_a_checkpoint_is_described_as_it_is(name: str, layers: str, cache: str, tmp_path: Path) -> None:
    make_model(FAMILIES[name]).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    lines = describe(tmp_path).splitlines()
    assert f"  layers      {layers}" in lines
    assert any(line.startswith(f"  cache       {cache}") for line in lines)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_flops_of_any_architecture_are_those_of_known_layers(name: str) -> None:
    cost = ModelCost.of(make_model(FAMILIES[name]).config)
    assert not cost.is_foreign
    cache = cost.cache()
    assert cache is not None
    for length in (5, 300):
        assert cost.counted_flops(length, cache.layers) == pytest.approx(cost.forward_flops(length))


SHARED = {"num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid"] * 2, "hybrid_layer_ids": [1, 3]}
HYBRIDS = {
    **{
        name: {}
        for name in ("jamba", "bamba", "zamba2", "nemotron_h", "qwen3_next", "olmo_hybrid", "gpt_oss")
    },
    "zamba2, of which two layers share weights": SHARED,
}


@pytest.mark.parametrize("name", HYBRIDS)
def test_flops_of_a_hybrid_are_those_of_a_counted_pass(name: str) -> None:
    """Products with weights are; of those between activations a recurrence's own algorithm has more.

    Layers as small as these leave 2 to 28 % uncounted.
    """
    family = FAMILIES[name.partition(",")[0]]
    if family.model_type not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {family.title}")
    length, family = 32, replace(family, settings={**family.settings, **HYBRIDS[name]})
    cost, model = ModelCost(make_model(family).config), make_model(family)
    model.set_attn_implementation("eager")
    model.set_experts_implementation("eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.arange(length)[None], use_cache=False)
    counted = {str(name): flops / length for name, flops in counter.get_flop_counts()["Global"].items()}
    # A convolution over the padding of both ends is cut.
    widths = [each.kernel_size[0] for each in model.modules() if isinstance(each, nn.Conv1d)]
    padded = (length + max(widths, default=1) - 1) / length
    linear = counted["aten.mm"] + counted.get("aten.addmm", 0) + counted.get("aten.convolution", 0) / padded
    assert cost.counted_flops(length, []) == pytest.approx(linear)
    assert 0.01 < 1 - cost.forward_flops(length) / sum(counted.values()) < 0.29


def test_a_token_meets_some_of_the_experts(tmp_path: Path) -> None:
    config = make_model(FAMILIES["deepseek_v3"]).config
    one = ModelCost.of(config).forward_flops(5)
    config.num_experts_per_tok += 1
    more = ModelCost.of(config).forward_flops(5)
    sizes = config.hidden_size * config.moe_intermediate_size
    layers = config.num_hidden_layers - config.first_k_dense_replace
    assert more - one == pytest.approx(2 * 3 * sizes * layers)


def test_states_of_a_foreign_recurrence_count() -> None:
    cost = ModelCost.of(make_model(FAMILIES["mamba2"]).config)
    states = sum(layer.cache.states["recurrent"][0] for layer in cost.foreign if not isinstance(layer, str))
    matrices = cost.forward_flops(5) - 4 * states
    assert states > 0
    assert cost.forward_flops(500) == pytest.approx(matrices + 4 * states)
