"""Architectures that the engine cannot run are refused in words when they are loaded."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, BloomConfig, LlamaConfig, RwkvConfig

from evalsuite.foundation import ConfigError
from evalsuite.models.checkpoints.load import Checkpoint
from evalsuite.models.inference import proof
from evalsuite.models.inference.proof import UnsupportedModelError, refuse_unsupported
from evalsuite.models.inference.torch import verify_cache
from evalsuite.models.inference.torch.engine import TorchEngine
from evalsuite.models.inference.torch.model_runner import ModelRunner
from evalsuite.models.inference.torch.scheduler import DecodeBatch

SIZES: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2}
HEADS: dict[str, Any] = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}


def engine(config: Any) -> TorchEngine:
    """Load a random model of this architecture."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    # Random weights of the usual size hardly let one token see another.
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and "embed" not in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return TorchEngine(Checkpoint("x", "x", model, SimpleNamespace(eos_token_id=0), "0" * 16), max_length=64)


def test_a_state_that_is_not_carried_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"RwkvForCausalLM: a text that engine torch reads in a batch gives other"
    ):
        engine(RwkvConfig(**SIZES, attention_hidden_size=32, context_length=64))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (BloomConfig(vocab_size=96, hidden_size=32, n_layer=2, n_head=4), "its layers do not work with"),
        (AutoConfig.for_model(
            "qwen3_next", **SIZES, **HEADS, head_dim=8, num_experts=2, num_experts_per_tok=1,
            linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
            layer_types=["linear_attention", "full_attention"],
        ), "it has layers of type linear_attention"),
        (AutoConfig.for_model(
            "llama4_text", **SIZES, **HEADS, head_dim=8, intermediate_size_mlp=48, attention_chunk_size=16,
            num_local_experts=2, num_experts_per_tok=1, moe_layers=[1], no_rope_layers=[1, 0],
        ), "layers of type chunked_attention"),
        (AutoConfig.for_model(
            "phi3", **SIZES, **HEADS, pad_token_id=0, original_max_position_embeddings=32,
            rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4,
                             "long_factor": [4.0] * 4, "original_max_position_embeddings": 32},
        ), "beyond 32 tokens the angles of its rotary embedding depend on the text's length"),
        (AutoConfig.for_model(
            "gpt_neo", vocab_size=96, hidden_size=32, num_layers=2, num_heads=4, window_size=64,
            max_position_embeddings=256, attention_types=[[["global", "local"], 1]],
        ), "it has windows .window_size = 64. beyond the 24 tokens that are tried at load"),
    ],
    ids=["bloom", "qwen3-next", "llama4", "phi3-longrope", "gpt-neo"],
)  # fmt: skip
def test_unknown_structures_are_refused(config: Any, reason: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"ForCausalLM: {reason}|ForCausalLM: it has {reason}"):
        engine(config)


def test_a_decode_step_that_reads_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    read = DecodeBatch.read

    def late(self: DecodeBatch, num_seqs: int, length: int) -> torch.Tensor:
        self.position.add_(1)
        logits = read(self, num_seqs, length)
        self.position.sub_(1)
        return logits

    monkeypatch.setattr(DecodeBatch, "read", late)
    with pytest.raises(ConfigError, match="LlamaForCausalLM: a text that engine torch reads token by token"):
        engine(LlamaConfig(**SIZES, **HEADS | {"max_position_embeddings": 128}))


def test_what_float64_does_not_show_is_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def strict(expected: list[torch.Tensor], found: list[torch.Tensor]) -> float | None:
        compared.append(expected[0].dtype)
        return proof.largest_deviation(expected, found)

    monkeypatch.setitem(proof._ROUNDING, "cpu", 1e-10)
    monkeypatch.setattr(verify_cache, "largest_deviation", strict)
    model = engine(LlamaConfig(**SIZES, **HEADS)).checkpoint.model
    assert compared[0] == torch.float32
    assert set(compared[1:]) >= {torch.float64}
    assert model.dtype == torch.float32


def test_an_error_of_evalsuite_is_passed_on() -> None:
    with pytest.raises(ConfigError, match=r"^own$"), refuse_unsupported("it"):
        raise ConfigError("own")
    with pytest.raises(KeyboardInterrupt), refuse_unsupported("it"):
        raise KeyboardInterrupt


def test_a_cache_that_loses_keys_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = LlamaConfig(**SIZES, **HEADS)
    assert engine(config).max_length == 64
    whole = ModelRunner.prefill

    def forgetful(self: ModelRunner, rows: Any, *, parent: Any = None, **rest: Any) -> Any:
        if parent is not None:
            for layer in parent.layers:
                layer.values = torch.zeros_like(layer.values)
        return whole(self, rows, parent=parent, **rest)

    monkeypatch.setattr(ModelRunner, "prefill", forgetful)
    with pytest.raises(ConfigError, match="LlamaForCausalLM: a text that engine torch reads in parts"):
        engine(config)
