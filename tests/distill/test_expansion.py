"""Repetition of key and value heads: whole heads, or as published code does it."""

import pytest
import torch

from evalsuite.distill import defects  # noqa: F401
from evalsuite.foundation import ConfigError
from evalsuite.models import build_student
from evalsuite.models.inits import INITS


def expanded(init: str, num_heads: int, num_kv_heads: int, head_dim: int) -> list[list[int]]:
    """Rows of the teacher's projection by query head."""
    rows = torch.arange(num_kv_heads * head_dim)
    repeated = INITS[init].repeat_kv(rows, head_dim, num_heads // num_kv_heads)
    found: list[list[int]] = repeated.view(num_heads, -1).tolist()
    return found


def whole_heads(num_heads: int, num_kv_heads: int, head_dim: int) -> list[list[int]]:
    group = num_heads // num_kv_heads
    return [list(range(h // group * head_dim, (h // group + 1) * head_dim)) for h in range(num_heads)]


def test_whole_heads_are_repeated_within_their_group():
    assert expanded("qkvo", 9, 3, 64) == whole_heads(9, 3, 64)


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "correct"), [(9, 3, 3), (15, 5, 5), (32, 32, 32)])
def test_head_size_32_is_correct_for_a_third_of_smollm2_and_without_groups(num_heads, num_kv_heads, correct):
    found, expected = (
        expanded("qkvo_heads_of_32", num_heads, num_kv_heads, 64),
        whole_heads(num_heads, num_kv_heads, 64),
    )
    assert sum(a == b for a, b in zip(found, expected, strict=True)) == correct


def test_repeating_rows_scrambles_every_head():
    assert expanded("qkvo_repeated_rows", 2, 1, 4) == [[0, 0, 1, 1], [2, 2, 3, 3]]


@pytest.mark.parametrize("init", ["qkvo", "qkvo_repeated_rows"])
def test_a_student_is_built_with_the_given_init(teacher, init):
    grouped = teacher.model.layers[0].self_attn.v_proj.weight
    mixer = build_student(teacher, "gated_deltanet", init=init).model.layers[0].self_attn
    shape = mixer.attention_shape
    assert shape.num_kv_groups > 1
    expected = INITS[init].repeat_kv(grouped, shape.head_dim, shape.num_kv_groups)
    assert torch.equal(mixer.v_proj.weight, expected)


def test_unknown_inits_and_indivisible_heads_are_refused(teacher):
    with pytest.raises(ConfigError, match="unknown init 'qkvoo'; did you mean 'qkvo'"):
        build_student(teacher, "gated_deltanet", init="qkvoo")
    with pytest.raises(ConfigError, match="24 rows do not divide into heads of 32"):
        expanded("qkvo_heads_of_32", 4, 2, 12)
