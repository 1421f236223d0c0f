"""A rotary embedding of the mixer's own heads (`rotary_base`), as RetNet's authors have it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from evalsuite.foundation import ConfigError
from evalsuite.models import StudentForCausalLM, build_student
from evalsuite.models.vllm_plugin.meta_model import build_meta_mixers

Make = Callable[..., PreTrainedModel]
BASE = 10000.0
NATIVE = {"preset": "native", "rotary_base": BASE}


def make(teacher: PreTrainedModel, mixer: str = "retnet", **options: Any) -> StudentForCausalLM:
    return build_student(teacher, mixer, options={mixer: NATIVE | options}, init="random").double()


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """x [B, T, H, D] turned as complex numbers, the channel i with the channel i + D / 2."""
    half = x.shape[-1] // 2
    rates = torch.tensor([BASE ** -(i / half) for i in range(half)], dtype=torch.float64)
    turn = torch.polar(torch.ones_like(rates), positions[..., None, None] * rates)
    turned = torch.complex(x[..., :half], x[..., half:]) * turn
    return torch.cat([turned.real, turned.imag], -1)


@torch.no_grad()
@pytest.mark.parametrize(
    "options", [{"num_heads": 2}, {"num_heads": 8}, {"expand_k": 0.5}, {"expand_k": 2.0}]
)
def test_all_channels_of_the_heads_are_rotated(make_teacher: Make, options: dict[str, Any]) -> None:
    """Also in a layer that the teacher does not rotate, SmolLM3's fourth."""
    teacher = make_teacher("smollm3", layers=4)
    student: Any = make(teacher, **options)
    x, positions = torch.randn(2, 12, 32, dtype=torch.float64), torch.tensor([range(12), range(40, 52)])
    angles = teacher.model.rotary_emb(x, positions)
    for layer, is_rotated in ((0, True), (3, False)):
        mixer = student.model.layers[layer].self_attn
        assert mixer.attention_shape.rotary == is_rotated
        assert mixer.head_k_dim != mixer.attention_shape.head_dim
        inputs = mixer.prepare(x, mixer.position_embeddings(angles, positions)).inputs
        for found, projection in ((inputs.q, mixer.q_proj), (inputs.k, mixer.k_proj)):
            wanted = rotated(mixer.split_heads(projection(x)), positions)
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "smollm3", "gemma3_text"])
def test_steps_padding_and_packing_have_the_same_positions(make_teacher: Make, family: str) -> None:
    """Also in layers that the teacher does not rotate (SmolLM3) or rotates by their kind (Gemma 3)."""
    student = make(make_teacher(family, layers=4), num_heads=2, teacher_qk_norm=False)
    ids = torch.arange(3, 15)[None]
    whole = student(ids).logits
    plain = student(ids, position_ids=torch.zeros(1, 12, dtype=torch.long), seq_idx=torch.zeros(1, 12)).logits
    assert not torch.allclose(plain, whole)

    cache = student(ids[:, :7], use_cache=True).past_key_values
    stepped = [student(ids[:, t : t + 1], past_key_values=cache, use_cache=True).logits for t in range(7, 12)]
    torch.testing.assert_close(torch.cat(stepped, 1), whole[:, 7:], rtol=0, atol=1e-5)
    cache = student(ids[:, :5], use_cache=True).past_key_values
    continued = student(ids[:, 5:], past_key_values=cache, use_cache=True).logits
    torch.testing.assert_close(continued, whole[:, 5:], rtol=0, atol=1e-5)

    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], 1)
    real = torch.arange(15)[None] >= 3
    for positions in (None, (real.long().cumsum(1) - 1).clamp_min(0)):
        shown = student(padded, attention_mask=real.long(), position_ids=positions).logits[:, 3:]
        torch.testing.assert_close(shown, whole, rtol=0, atol=1e-5)

    twice, restarting = ids.repeat(1, 2), torch.arange(12).repeat(2)[None]
    for packing in (
        {"cu_seqlens": torch.tensor([0, 12, 24])},
        {"position_ids": restarting},
        {"cu_seqlens": torch.tensor([0, 12, 24]), "position_ids": torch.arange(24)[None]},
    ):
        packed = student(twice, **packing).logits.view(2, 12, -1)
        torch.testing.assert_close(packed, whole.expand(2, -1, -1), rtol=0, atol=1e-5)


def test_a_saved_student_keeps_its_base(make_teacher: Make, tmp_path: Any) -> None:
    student = make(make_teacher(), num_heads=2)
    student.save_pretrained(tmp_path)
    loaded = StudentForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    ids = torch.arange(3, 15)[None]
    torch.testing.assert_close(loaded(ids).logits, student(ids).logits)
    assert not student.config.is_recurrent


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rotary_base": 0.5}, "rotary_base = 0.5: must be 0 or above 1"),
        ({"rotary_base": 1}, "rotary_base = 1: must be 0 or above 1"),
        ({"rotary_base": float("inf")}, "rotary_base = inf: must be 0 or above 1, and finite"),
        ({"rotary_base": float("nan")}, "rotary_base = nan: must be 0 or above 1"),
        ({"rotary_base": True}, "rotary_base = True: expected float"),
        ({"rotary_base": "10000"}, "rotary_base = '10000': expected float"),
        ({"rotary": False}, "rotary_base = 10000.0: has no effect without rotary: true"),
        ({"window": 4}, "rotary_base = 10000.0: a window attends with .* set window: 0"),
        ({"num_heads": 32}, "rotary_base = 10000.0: pairs of channels are rotated, the heads have 1"),
        ({"num_heads": 2, "rotary_base": 0.0}, "set rotary: false, or a rotary_base"),
    ],
)
def test_what_cannot_be_is_refused(make_teacher: Make, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(make_teacher(), **options)


def test_softmax_heads_are_refused_and_vllm_takes_the_option(make_teacher: Make) -> None:
    with pytest.raises(ConfigError, match=r"softmax heads in a layer of retnet with rotary_base = 10000\.0"):
        build_student(make_teacher(), "retnet", options={"retnet": NATIVE}, softmax_heads={0: [1]})
    assert len(build_meta_mixers(make(make_teacher(), num_heads=2).config)) == 2
