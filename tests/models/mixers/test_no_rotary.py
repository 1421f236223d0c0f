"""Softmax layers without positions (HyPE of arXiv 2601.22156)."""

from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedModel

from evalsuite.foundation import ConfigError
from evalsuite.models import StudentForCausalLM, build_student
from evalsuite.models.vllm_plugin.meta_model import build_meta_mixers

Make = Callable[..., PreTrainedModel]
KINDS = [("softmax", {}), ("sliding_window", {"window": 5}), ("sliding_window", {"window": 5, "sinks": 2})]


def make(make_teacher: Make, name: str, **options: object) -> StudentForCausalLM:
    """One layer, so that its output at a token depends on the order of earlier ones by positions alone."""
    return build_student(make_teacher(layers=1), name, options={name: options}).double()


@torch.no_grad()
def test_without_rotary_the_order_of_earlier_tokens_does_not_matter(make_teacher: Make) -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9], [7, 5, 8, 6, 9]])
    for rotary in (False, True):
        for base in (0.0,) if rotary else (0.0, 8.0):
            student = make(make_teacher, "softmax", rotary=rotary, logit_scale_base=base)
            first, second = student(ids).logits[:, -1]
            assert torch.allclose(first, second, rtol=1e-9) == (not rotary)


@torch.no_grad()
@pytest.mark.parametrize(("name", "options"), KINDS)
def test_logits_grow_with_the_position_of_the_query(
    make_teacher: Make, name: str, options: dict[str, int]
) -> None:
    """arXiv 2601.22156, Eq. 11: s_t = log_a(t + a), also with a cache, with padding and in the matrix."""
    student = make(make_teacher, name, rotary=False, logit_scale_base=8.0, **options)
    plain = make(make_teacher, name, rotary=False, **options)
    mixer, other = student.model.layers[0].self_attn, plain.model.layers[0].self_attn
    ids, x = torch.arange(3, 15)[None], torch.randn(1, 12, 32, dtype=torch.float64)
    places = torch.arange(12)
    rotary = student.model.rotary_emb(x, places[None])
    found, _ = mixer.attention_matrix(x, mixer.position_embeddings(rotary, places[None]))
    weights, _ = other.attention_matrix(x, other.position_embeddings(rotary, places[None]))
    scale = torch.log(places + 8.0) / torch.log(torch.tensor(8.0))
    powers = weights.double() ** scale[:, None]
    torch.testing.assert_close(found.double(), powers / powers.sum(-1, keepdim=True), rtol=1e-5, atol=1e-7)

    whole = student(ids).logits
    cache = student(ids[:, :7], use_cache=True).past_key_values
    stepped = [student(ids[:, t : t + 1], past_key_values=cache, use_cache=True).logits for t in range(7, 12)]
    torch.testing.assert_close(torch.cat(stepped, 1), whole[:, 7:])
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], 1)
    real = torch.arange(15)[None] >= 3
    shown = student(padded, attention_mask=real.long(), position_ids=(real.long().cumsum(1) - 1).clamp_min(0))
    torch.testing.assert_close(shown.logits[:, 3:], whole)
    packed = student(ids.repeat(1, 2), cu_seqlens=torch.tensor([0, 12, 24])).logits
    torch.testing.assert_close(packed.view(2, 12, -1), whole.expand(2, -1, -1))


def test_what_cannot_be_is_refused(make_teacher: Make) -> None:
    for options, message in (
        ({"logit_scale_base": 8.0}, "logit_scale_base = 8.0: is for layers without positions; set rotary"),
        ({"logit_scale_base": 0.5, "rotary": False}, "logit_scale_base = 0.5: must be 0 or above 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            make(make_teacher, "softmax", **options)
    with pytest.raises(ConfigError, match="the mixer softmax cannot be served by vLLM; use --engine torch"):
        build_meta_mixers(make(make_teacher, "softmax", rotary=False).config)
