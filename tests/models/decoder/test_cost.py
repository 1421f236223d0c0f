"""Parameter counts and cache sizes from configs, compared with the papers' figures."""

from typing import Any

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, MambaConfig, PreTrainedConfig, Qwen3Config

from evalsuite.foundation import ConfigError
from evalsuite.models import MIXERS, StudentConfig, build_student
from evalsuite.models.decoder.cache import RecurrentLayerCache, StudentCache
from evalsuite.models.decoder.cost import ModelCost, format_flops, peak_flops

SMOL = {"vocab_size": 49152, "max_position_embeddings": 8192, "tie_word_embeddings": True}
TEACHERS: dict[str, PreTrainedConfig] = {
    "SmolLM2-135M": LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        **SMOL,
    ),
    "SmolLM2-360M": LlamaConfig(
        hidden_size=960,
        intermediate_size=2560,
        num_hidden_layers=32,
        num_attention_heads=15,
        num_key_value_heads=5,
        **SMOL,
    ),
    "SmolLM2-1.7B": LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=24,
        num_attention_heads=32,
        num_key_value_heads=32,
        **SMOL,
    ),
    "Qwen3-0.6B": Qwen3Config(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        tie_word_embeddings=True,
    ),
}
# Millions of parameters of a student with default options in every layer. Compared with the teachers'
# 134.5, 361.8, 1711.4 and 596.0, a default mixer adds a full-rank output gate, a key and a value head per
# query head, and a convolution of kernel size 4; then its own gates.
STUDENTS = {
    "softmax": (134.5, 361.8, 1711.4, 596.0),
    "sliding_window": (134.5, 361.8, 1711.4, 596.0),
    "linear_attention": (158.0, 431.0, 1812.7, 714.2),
    "retnet": (158.0, 431.0, 1812.7, 714.2),
    "gla": (158.5, 432.0, 1814.3, 715.7),
    "mlstm": (158.3, 432.0, 1815.8, 715.2),
    "deltanet": (158.1, 431.5, 1814.3, 714.7),
    "gated_deltanet": (158.3, 432.0, 1815.8, 715.2),
    "kda": (160.3, 435.5, 1820.6, 725.8),
    "gated_deltanet_2": (180.1, 494.0, 2020.3, 842.7),
    "comba": (158.3, 432.0, 1815.8, 715.2),
    "mesanet": (158.3, 432.0, 1815.9, 715.2),
    "rwkv7": (162.5, 439.1, 1825.5, 736.5),
    "hgrn2": (158.0, 431.1, 1812.7, 714.3),
    "mamba2": (158.1, 431.5, 1814.3, 714.7),
    "metala": (158.0, 431.1, 1812.8, 714.3),
    "rebased": (158.2, 431.5, 1813.5, 715.2),
    "hedgehog": (160.2, 435.0, 1819.0, 728.9),
}


def student(teacher: str, mixers: list[str] | str, **options: Any) -> StudentConfig:
    base = TEACHERS[teacher]
    names = [mixers] * base.num_hidden_layers if isinstance(mixers, str) else mixers
    return StudentConfig(
        teacher=base.to_dict(), mixers=names, mixer_options=dict.fromkeys(set(names) - {"softmax"}, options)
    )


@pytest.mark.parametrize("name", sorted(STUDENTS))
def test_students_of_four_teachers(name: str) -> None:
    assert set(STUDENTS) == set(MIXERS)
    found = tuple(round(ModelCost.of(student(teacher, name)).num_params / 1e6, 1) for teacher in TEACHERS)
    assert found == STUDENTS[name]


@pytest.mark.parametrize(("name", "total", "added"), [("kda", 613, 0.8), ("mamba2", 641, 2.1)])
def test_hybrids_of_arxiv_2603_26556_table_8(name: str, total: int, added: float) -> None:
    """arXiv 2603.26556, Table 8: 7 softmax layers of Qwen3-0.6B's 28 and the teacher's 8 key heads. The
    'non-embedding' 613M and 641M are totals with the tied embedding counted once; Appendix B adds 0.8M and
    2.1M per layer."""
    kept = {0, 2, 6, 11, 13, 18, 21}
    config = student("Qwen3-0.6B", ["softmax" if n in kept else name for n in range(28)], preset="gendistill")
    found = ModelCost.of(config).num_params
    assert round(found / 1e6) == total
    teacher = ModelCost.of(TEACHERS["Qwen3-0.6B"]).num_params
    assert round((found - teacher) / 21 / 1e6, 1) == added


# Millions of parameters in Table 4 of arXiv 2504.14366v1 for a teacher of the sizes of SmolLM2-360M, and the
# options besides `preset: native` that give them. The table states no layer sizes.
TABLE_4: dict[str, tuple[int, dict[str, Any]]] = {
    "retnet": (566, {"expand_v": 2.0}),
    "gla": (420, {"expand_k": 0.5, "output_gate": "none"}),
    # Forget gate and values in the teacher's width of keys and values.
    "hgrn2": (409, {"expand_kv": False}),
    "rebased": (404, {"feature_proj": False, "expand_k": 0.25}),
    "deltanet": (449, {}),
    # Four heads as in xLSTM; the sum is 448.6.
    "mlstm": (448, {"num_heads": 4, "expand_k": 0.5}),
    "metala": (448, {"output_gate": "none"}),
    # 30 heads of 64 channels that share a B and a C of 240; with fla's default of 128 each it would be 516.5.
    "mamba2": (523, {"num_heads": 30, "num_qk_heads": 1, "expand_k": 7.5, "expand_v": 2.0}),
}


@pytest.mark.parametrize("name", TABLE_4)
def test_table_4_of_arxiv_2504_14366v1_follows_from_options(name: str) -> None:
    """The printed figures are those of students whose head is counted apart from the embeddings (47.2M).

    Eight of nine rows follow. Hedgehog is printed as 404, like ReBased; full-width projections make 448.6.
    """
    printed, options = TABLE_4[name]
    untied_head = TEACHERS["SmolLM2-360M"].vocab_size * TEACHERS["SmolLM2-360M"].hidden_size
    total = ModelCost.of(student("SmolLM2-360M", name, preset="native", **options)).num_params + untied_head
    assert abs(total / 1e6 - printed) < 0.61


def cache_bytes(cache: StudentCache) -> int:
    """Bytes of all that a cache holds."""
    total = 0
    for layer in cache.layers:
        if isinstance(layer, RecurrentLayerCache):
            total += sum(state.nbytes for state in (layer.read() or {}).values())
        else:
            total += layer.keys.nbytes + layer.values.nbytes
    return total


def test_cache_size_of_a_hybrid_equals_the_actual_cache(make_teacher: Any) -> None:
    model = build_student(
        make_teacher(layers=3),
        ["gla", "sliding_window", "softmax"],
        options={"sliding_window": {"window": 4}},
    )
    size = ModelCost.of(model.config).cache(torch.float32)
    assert size is not None
    for length in (2, 3, 9):
        with torch.no_grad():
            cache = model(torch.zeros(1, length, dtype=torch.long), use_cache=True).past_key_values
        assert cache_bytes(cache) == size.at(length)
    teacher = ModelCost.of(make_teacher(layers=3).config).cache(torch.float32)
    assert teacher is not None
    assert teacher.per_token == 3 * 2 * 2 * 8 * 4


def test_cache_of_a_teacher_with_windows(make_teacher: Any) -> None:
    config = make_teacher("mistral", sliding_window=5).config
    cache = ModelCost.of(config).cache(torch.float32)
    assert cache is not None
    assert cache.at(100) == 2 * 4 * (2 * 2 * 8) * 4


def test_flops_of_a_teacher_and_a_hybrid() -> None:
    """SmolLM2-135M: two per weight with the tied head, and 2 · 2 · 576 per layer and token attended to."""
    teacher = TEACHERS["SmolLM2-135M"]
    weights = ModelCost.of(teacher).num_params - 61 * 576
    for length in (1, 2047):
        wanted = 2 * weights + 30 * 4 * 576 * (length + 1) / 2
        assert ModelCost.of(teacher).forward_flops(length) == wanted
    hybrid = ModelCost.of(student("SmolLM2-135M", ["gla", "softmax"] * 15))
    mixed = [hybrid.forward_flops(length) for length in (1, 32768)]
    assert mixed[1] - mixed[0] == 15 * 4 * 576 * 32767 / 2


def test_what_is_counted_of_foreign_architectures() -> None:
    gpt2, mamba = (ModelCost.of(kind(num_hidden_layers=2)) for kind in (GPT2Config, MambaConfig))
    assert gpt2.is_foreign
    assert gpt2.num_params > gpt2.embedding_params == 50257 * 768
    cache = gpt2.cache(torch.float32)
    assert cache is not None
    assert cache.per_token == 2 * 2 * 768 * 4
    states = mamba.cache(torch.float32)
    assert states is not None
    assert states.per_token == 0
    # Two layers of 1,536 channels: a state of 16 numbers and a convolution over four tokens.
    assert states.at(1) == states.at(9000) == 2 * 1536 * (16 + 4) * 4
    for cost in (gpt2, mamba):
        assert cost.forward_flops(9000) >= 2 * (cost.num_params - cost.embedding_params) * 0.98
        with pytest.raises(ConfigError, match="layers of architecture"):
            _ = cost.mixer_params


def test_rates_are_shown_with_the_share_of_the_peak() -> None:
    assert format_flops(494.5e12, "NVIDIA H100 80GB HBM3") == "494 TFLOP/s (50.0 % of 989)"
    assert format_flops(98.9e12, "NVIDIA H200") == "98.9 TFLOP/s (10.0 % of 989)"
    assert format_flops(2e12, "CPU, 2 threads") == "2 TFLOP/s"
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
