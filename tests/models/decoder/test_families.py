"""Teachers unlike Llama: norms after the mixer, QK-norm over all heads, windows, soft caps, no rotation."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from evalsuite.foundation import ConfigError
from evalsuite.models import build_student
from evalsuite.models.decoder.families import FAMILIES
from evalsuite.models.mixers.teacher_weights import norm_gain
from evalsuite.models.vllm_plugin.validation import validate_student
from tests.models.engine_reference import assert_engine_responds_as, pocket_tokenizer

Make = Callable[..., PreTrainedModel]
OTHERS = [name for name, family in FAMILIES.items() if not family.served_by_vllm]
family = pytest.mark.parametrize("family", OTHERS)


def ids(rows: int = 2, length: int = 14) -> Tensor:
    return torch.randint(0, 61, (rows, length), generator=torch.Generator().manual_seed(1))


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@family
@torch.no_grad()
def test_a_softmax_student_equals_its_teacher(make_teacher: Make, tmp_path: Path, family: str) -> None:
    teacher = make_teacher(family, layers=4)
    wanted = teacher(ids()).logits
    student = build_student(teacher, "softmax")
    close(student(ids()).logits, wanted)
    student.save_pretrained(tmp_path)
    close(AutoModelForCausalLM.from_pretrained(tmp_path).eval()(ids()).logits, wanted)
    settings = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(student.generate(ids(), **settings), teacher.generate(ids(), **settings))
    packed = student(ids(1), cu_seqlens=torch.tensor([0, 5, 14])).logits
    close(packed[:, 5:], teacher(ids(1)[:, 5:]).logits)
    # What distinguishes the family matters at these sizes.
    assert (wanted - make_teacher("llama", layers=4)(ids()).logits).abs().max() > 0.1


@family
def test_the_engine_responds_as_the_model(make_teacher: Make, family: str) -> None:
    tokenizer = pocket_tokenizer()
    teacher = make_teacher(family, layers=4, vocab_size=len(tokenizer))
    for model in (teacher, build_student(teacher, ["gla", "softmax", "sliding_window", "kda"])):
        assert_engine_responds_as(model, tokenizer, 6)


@family
@pytest.mark.parametrize("mixer", ["gla", "gated_deltanet", "hedgehog", "hgrn2"])
@torch.no_grad()
def test_mixers_replace_their_attention(make_teacher: Make, tmp_path: Path, family: str, mixer: str) -> None:
    """Cached = uncached, saved = loaded, padded = alone."""
    student = build_student(make_teacher(family, layers=4), [mixer, "softmax"] * 2)
    student.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded(ids()).logits, student(ids()).logits)
    # Not in double precision: eager attention (Gemma 2) has its softmax in float32, where the mask overflows.
    mask = torch.ones(2, 14, dtype=torch.long)
    mask[0, :6] = 0
    settings = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    settings |= {"output_logits": True, "return_dict_in_generate": True}
    cached, plain = (student.generate(ids(), use_cache=use, **settings) for use in (True, False))
    torch.testing.assert_close(torch.stack(cached.logits), torch.stack(plain.logits), rtol=1e-4, atol=1e-4)
    alone = student.generate(ids()[:1, 6:], **{**settings, "attention_mask": mask[:1, 6:]})
    padded = torch.stack(cached.logits)[:, :1]
    torch.testing.assert_close(padded, torch.stack(alone.logits), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", [*OTHERS, "qwen3"])
@torch.no_grad()
def test_queries_and_keys_are_normalised_as_the_teachers(make_teacher: Make, family: str) -> None:
    """Before rotation; a key head of the teacher stands before each query head of its group."""
    teacher = make_teacher(family)
    # The teacher's rotated queries and keys, without anything else.
    student = build_student(
        teacher, "hedgehog", options={"hedgehog": {"short_conv": 0, "activation": "none"}}
    )
    softmax = build_student(teacher, "softmax")
    x = torch.randn(1, 5, 32)
    for layer in range(2):
        mixer, attention = student.model.layers[layer].self_attn, softmax.model.layers[layer].self_attn
        seen: dict[str, Tensor] = {}
        mixer._features = lambda x, which, seen=seen: seen.setdefault("qk"[which], x)
        angles = student.model._rotary(x, torch.arange(5)[None])[layer]
        mixer.prepare(x, angles)
        q, k, _ = attention.project(x, angles)
        close(seen["q"], q)
        close(seen["k"], k.repeat_interleave(2, 2))


@torch.no_grad()
def test_gain_of_norms(make_teacher: Make) -> None:
    for name, offset in (("llama", 0), ("olmo2", 0), ("gemma2", 1)):
        norm = make_teacher(name).model.norm
        assert torch.equal(norm_gain(norm), norm.weight + offset)


@family
def test_vllm_serves_llamas_blocks_only(make_teacher: Make, family: str) -> None:
    teacher = make_teacher(family)
    with pytest.raises(ConfigError, match=f"students of {family} teachers cannot be served by vLLM"):
        validate_student(build_student(teacher, "gla").config, 1)


def test_a_norm_over_all_heads_needs_all_heads(make_teacher: Make) -> None:
    with pytest.raises(ConfigError, match="num_qk_heads = 1: the teacher's QK-norm spans all of its heads"):
        build_student(make_teacher("olmo2"), "mamba2", options={"mamba2": {"num_qk_heads": 1}}, init="vo")
