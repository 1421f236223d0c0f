"""Repetition of key and value heads: whole heads, or the published defects."""

import pytest
import torch

from evalsuite.foundation import ConfigError
from evalsuite.models import build_student
from evalsuite.models.mixers.attention_shape import AttentionShape, repeat_kv_weights


def attention_shape(num_heads: int, num_kv_heads: int, head_dim: int) -> AttentionShape:
    return AttentionShape(
        hidden_size=8, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim,
        q_bias=False, k_bias=False, v_bias=False, o_bias=False, qk_norm=None, rotary=True, norm_eps=1e-6,
    )  # fmt: skip


def expanded(mode: str, num_heads: int, num_kv_heads: int, head_dim: int) -> list[list[int]]:
    """Rows of the teacher's projection by query head."""
    rows = torch.arange(num_kv_heads * head_dim)
    found: list[list[int]] = (
        repeat_kv_weights(rows, attention_shape(num_heads, num_kv_heads, head_dim), mode)
        .view(num_heads, -1)
        .tolist()
    )
    return found


def whole_heads(num_heads: int, num_kv_heads: int, head_dim: int) -> list[list[int]]:
    group = num_heads // num_kv_heads
    return [list(range(h // group * head_dim, (h // group + 1) * head_dim)) for h in range(num_heads)]


def test_whole_heads_are_repeated_within_their_group():
    assert expanded("heads", 9, 3, 64) == whole_heads(9, 3, 64)


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "correct"), [(9, 3, 3), (15, 5, 5), (32, 32, 32)])
def test_head_size_32_is_correct_for_a_third_of_smollm2_and_without_groups(num_heads, num_kv_heads, correct):
    found, expected = (
        expanded("head_size_32", num_heads, num_kv_heads, 64),
        whole_heads(num_heads, num_kv_heads, 64),
    )
    assert sum(a == b for a, b in zip(found, expected, strict=True)) == correct


def test_repeating_rows_scrambles_every_head():
    assert expanded("rows", 2, 1, 4) == [[0, 0, 1, 1], [2, 2, 3, 3]]


def test_a_student_is_built_with_the_given_expansion(make_teacher):
    teacher = make_teacher("llama")
    grouped = teacher.model.layers[0].self_attn.v_proj.weight
    for mode in ("heads", "rows"):
        student = build_student(teacher, "gated_deltanet", kv_expansion=mode)
        mixer = student.model.layers[0].self_attn
        assert mixer.attention_shape.num_kv_groups > 1
        assert torch.equal(mixer.v_proj.weight, repeat_kv_weights(grouped, mixer.attention_shape, mode))


def test_unknown_expansions_and_indivisible_heads_are_refused():
    with pytest.raises(ConfigError, match="kv_expansion = 'head'; did you mean 'heads'"):
        expanded("head", 9, 3, 64)
    with pytest.raises(ConfigError, match="24 rows do not divide into heads of 32"):
        expanded("head_size_32", 4, 2, 12)
