"""Parameter counts and cache sizes from configs, compared with the papers' figures."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig, PreTrainedConfig, Qwen3Config

from evalsuite.models import MIXERS, StudentConfig, build_student
from evalsuite.models.model_stats import cache_size, count_parameters

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
    found = tuple(round(count_parameters(student(teacher, name)).total / 1e6, 1) for teacher in TEACHERS)
    assert found == STUDENTS[name]


@pytest.mark.parametrize(
    ("name", "options", "total", "added"),
    [("kda", {"expand_kv": False, "gate_rank": 128}, 613, 0.8), ("mamba2", {"expand_kv": False}, 641, 2.1)],
)
def test_hybrids_of_arxiv_2603_26556_table_8(
    name: str, options: dict[str, Any], total: int, added: float
) -> None:
    """arXiv 2603.26556, Table 8: 7 softmax layers of Qwen3-0.6B's 28 and the teacher's 8 key heads. The
    'non-embedding' 613M and 641M are totals with the tied embedding counted once; Appendix B adds 0.8M and
    2.1M per layer."""
    kept = {0, 2, 6, 11, 13, 18, 21}
    config = student("Qwen3-0.6B", ["softmax" if n in kept else name for n in range(28)], **options)
    found = count_parameters(config).total
    assert round(found / 1e6) == total
    teacher = count_parameters(TEACHERS["Qwen3-0.6B"]).total
    assert round((found - teacher) / 21 / 1e6, 1) == added


# One layer's mixer as fla's layers lay it out at the sizes of SmolLM2-360M (hidden 960, 15 heads on 5): the
# layouts with which Table 4 of arXiv 2504.14366v1 adds up. S is one square projection, 960 × 960.
HIDDEN, HEADS, KV_CHANNELS = 960, 15, 320
S = HIDDEN**2
PAPER_LAYOUTS: dict[str, tuple[int, float]] = {
    # q and k; v, gate and o twice as wide (expand_v = 2)
    "retnet": (566, 8 * S),
    # q and k at half width, v, o, a decay of rank 16 with bias; no output gate
    "gla": (420, 3 * S + HIDDEN * 16 + 16 * HIDDEN / 2 + HIDDEN / 2),
    # q and o; forget gate and value at the teacher's width of keys and values
    "hgrn2": (409, 2 * S + 2 * HIDDEN * KV_CHANNELS),
    # q and k reduced to 16 features a head; v and o
    "rebased": (404, 2 * S + 2 * HIDDEN * 16 * HEADS),
    # q, k, v, o; β; convolutions of 4 taps; no output gate
    "deltanet": (449, 4 * S + HIDDEN * HEADS + 3 * HIDDEN * 4),
    # q and k at half width, v, output gate, o; two gates of 4 heads
    "mlstm": (448, 4 * S + 2 * (HIDDEN * 4 + 4)),
    # q, decay, v, o
    "metala": (448, 4 * S),
    # z and x twice as wide, B and C of 480 channels together, Δ of 30 heads; convolution with bias; norm; o.
    # With fla's default of 256 channels for B and C it would be 516.5.
    "mamba2": (523, HIDDEN * (4 * HIDDEN + 480 + 30) + 2 * S + 5 * (2 * HIDDEN + 480) + 90 + 2 * HIDDEN),
}


@pytest.mark.parametrize("name", PAPER_LAYOUTS)
def test_table_4_of_arxiv_2504_14366v1_adds_up(name: str) -> None:
    """The figures of arXiv 2504.14366v1, Appendix A, are those of students with an untied head of 47.2M.

    The table gives 350M for a teacher with 361.8M and no layer sizes. With the head counted twice and the
    layouts above, eight of nine rows agree to the million (mLSTM at 448.6, printed 448). Hedgehog is printed
    like ReBased, 404; its own layout would give 409.0 plus feature maps.
    """
    printed, mixer = PAPER_LAYOUTS[name]
    base = TEACHERS["SmolLM2-360M"]
    teacher = count_parameters(base)
    untied_head = base.vocab_size * base.hidden_size
    total = teacher.rest + teacher.embeddings + untied_head + base.num_hidden_layers * mixer
    assert abs(total / 1e6 - printed) < 0.6


@pytest.mark.parametrize(
    ("name", "options", "paper", "extra"),
    [
        # DeltaNet: with key heads expanded and no output gate, ours differs by the tied head only.
        ("deltanet", {"output_gate": "none"}, 449, 0.0),
        # MetaLA: ours convolves q, the decay's logits and v.
        ("metala", {"output_gate": "none"}, 448, 0.4),
        # HGRN2 with the teacher's width of keys and values, as in the paper; plus our convolutions.
        ("hgrn2", {"output_gate": "none", "expand_kv": False}, 409, 0.2),
    ],
)
def test_our_mixers_in_the_papers_layout(
    name: str, options: dict[str, Any], paper: float, extra: float
) -> None:
    """Our mixers in the paper's layout, plus the untied head that the paper counts, in millions."""
    ours = count_parameters(student("SmolLM2-360M", name, **options)).total / 1e6
    assert abs(ours + 47.2 - paper - extra) < 0.6


def test_cache_size_of_a_hybrid_equals_the_actual_cache(make_teacher: Any) -> None:
    model = build_student(
        make_teacher(layers=3),
        ["gla", "sliding_window", "softmax"],
        options={"sliding_window": {"window": 4}},
    )
    size = cache_size(model.config, torch.float32)
    for length in (2, 3, 9):
        with torch.no_grad():
            cache = model(torch.zeros(1, length, dtype=torch.long), use_cache=True).past_key_values
        assert cache.bytes() == size.at(length)
    assert cache_size(make_teacher(layers=3).config, torch.float32).per_token == 3 * 2 * 2 * 8 * 4
