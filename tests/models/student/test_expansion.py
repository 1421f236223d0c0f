"""Key and value heads repeated for every query head: whole heads, or as published code got it wrong."""

import pytest
import torch

from evalsuite.foundation import ConfigError
from evalsuite.models import build_student
from evalsuite.models.mixers.geometry import Geometry, expand_heads


def geometry(heads: int, kv_heads: int, head_dim: int) -> Geometry:
    return Geometry(
        hidden=8, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        q_bias=False, k_bias=False, v_bias=False, o_bias=False, qk_norm=False, norm_eps=1e-6,
    )  # fmt: skip


def expanded(how: str, heads: int, kv_heads: int, head_dim: int) -> list[list[int]]:
    """For each query head, which rows of the teacher's projection it got."""
    rows = torch.arange(kv_heads * head_dim)
    found: list[list[int]] = (
        expand_heads(rows, geometry(heads, kv_heads, head_dim), how).view(heads, -1).tolist()
    )
    return found


def right(heads: int, kv_heads: int, head_dim: int) -> list[list[int]]:
    group = heads // kv_heads
    return [list(range(h // group * head_dim, (h // group + 1) * head_dim)) for h in range(heads)]


def test_whole_heads_reach_the_queries_of_their_group():
    assert expanded("heads", 9, 3, 64) == right(9, 3, 64)


@pytest.mark.parametrize(("heads", "kv_heads", "correct"), [(9, 3, 3), (15, 5, 5), (32, 32, 32)])
def test_heads_of_32_are_right_for_a_third_of_smollm2_and_without_groups(heads, kv_heads, correct):
    found, expected = expanded("head_size_32", heads, kv_heads, 64), right(heads, kv_heads, 64)
    assert sum(a == b for a, b in zip(found, expected, strict=True)) == correct


def test_single_rows_scramble_every_head():
    assert expanded("rows", 2, 1, 4) == [[0, 0, 1, 1], [2, 2, 3, 3]]


def test_a_student_starts_from_the_expansion_that_was_asked_for(make_teacher):
    teacher = make_teacher("llama")
    grouped = teacher.model.layers[0].self_attn.v_proj.weight
    for how in ("heads", "rows"):
        student = build_student(teacher, "gated_deltanet", kv_expansion=how)
        mixer = student.model.layers[0].self_attn
        assert mixer.geometry.groups > 1
        assert torch.equal(mixer.v_proj.weight, expand_heads(grouped, mixer.geometry, how))


def test_unknown_expansions_and_heads_that_do_not_divide_are_refused():
    with pytest.raises(ConfigError, match="kv_expansion = 'head'; did you mean 'heads'"):
        expanded("head", 9, 3, 64)
    with pytest.raises(ConfigError, match="24 rows do not divide into heads of 32"):
        expanded("head_size_32", 4, 2, 12)
