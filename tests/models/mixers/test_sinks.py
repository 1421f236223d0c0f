"""Windows with attention sinks, alone and inside recurrent layers: what they attend to, and their state."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from evalsuite.foundation import ConfigError
from evalsuite.models import StudentForCausalLM, build_student
from evalsuite.models.decoder.model import check_attention
from evalsuite.models.mixers import AttentionSpan, window_state
from evalsuite.models.mixers.window_state import attend_with_state, state_shapes
from evalsuite.models.vllm_plugin.validation import validate_student
from tests.models.engine_reference import assert_engine_responds_as, pocket_tokenizer

Make = Callable[..., PreTrainedModel]
SPANS = [
    AttentionSpan(1, 1),
    AttentionSpan(1, 3),
    AttentionSpan(4, 2),
    AttentionSpan(5, 1),
    AttentionSpan(30, 4),
]
spans = pytest.mark.parametrize("span", SPANS, ids=str)


def inputs(rows: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    make = lambda heads: torch.randn(rows, length, heads, 8, dtype=torch.float64)  # noqa: E731
    return make(4), make(2), make(2)


def written_out(q: Tensor, k: Tensor, v: Tensor, span: AttentionSpan) -> Tensor:
    """Attention of one row [T, H, D], token by token."""
    out = torch.empty_like(q)
    for t in range(q.shape[0]):
        seen = [s for s in range(t + 1) if s > t - (span.window or 0) or s < span.sinks]
        for h in range(q.shape[1]):
            weights = (k[seen, h // 2] @ q[t, h] * 0.3).softmax(0)
            out[t, h] = weights @ v[seen, h // 2]
    return out


def attend(
    q: Tensor, k: Tensor, v: Tensor, span: AttentionSpan, **rest: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    arguments = {"state": None, "token_mask": None, **rest}
    return attend_with_state(q, k, v, span=span, scale=0.3, **arguments)


@spans
def test_equals_attention_written_out(span: AttentionSpan) -> None:
    q, k, v = inputs(2, 13)
    found, state = attend(q, k, v, span)
    for row in range(2):
        torch.testing.assert_close(found[row], written_out(q[row], k[row], v[row], span))
    assert {name: x.shape[1:] for name, x in state.items()} == {
        name: torch.Size(shape) for name, shape in state_shapes(span, 2, 8, 8).items()
    }


@spans
@pytest.mark.parametrize("cap", [None, 2.0])
def test_blocks_have_the_gradients_of_all_pairs(
    span: AttentionSpan, cap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = torch.ones(2, 13, dtype=torch.bool)
    mask[1, :3] = False
    found = []
    for blocked_from in (0, 1000):
        monkeypatch.setattr(window_state, "BLOCKED_FROM", blocked_from)
        tensors = [x.requires_grad_() for x in inputs(2, 13)]
        out, _ = attend(*tensors, span, token_mask=mask, cap=cap)
        (out[mask] * torch.arange(8)).sum().backward()
        found.append([out[mask], *(x.grad for x in tensors)])
    for blocked, every in zip(*found, strict=True):
        torch.testing.assert_close(blocked, every)


@spans
@pytest.mark.parametrize("bounds", [[0, 7, 13], [0, 1, 2, 3, 13], [0, *range(6, 14)]], ids=str)
def test_split_and_stepped_equal_unsplit(span: AttentionSpan, bounds: list[int]) -> None:
    q, k, v = inputs(2, 13)
    whole, last = attend(q, k, v, span)
    state, parts = None, []
    for first, end in itertools.pairwise(bounds):
        part, state = attend(*(x[:, first:end] for x in (q, k, v)), span, state=state)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1), whole)
    assert state is not None
    for name, x in last.items():
        torch.testing.assert_close(state[name], x)


@spans
@pytest.mark.parametrize("left", [True, False])
def test_padded_rows_equal_single_rows(span: AttentionSpan, left: bool) -> None:
    """Over two calls; the second row has no token at all in the second."""
    q, k, v = inputs(2, 13)
    lengths = ((9, 5), (4, 0))
    state, firsts = None, (0, 0)
    for counts in lengths:
        longest = max(counts)
        mask = torch.zeros(2, longest, dtype=torch.bool)
        padded = [torch.full((2, longest, *x.shape[2:]), 7.0, dtype=x.dtype) for x in (q, k, v)]
        for row, count in enumerate(counts):
            place = slice(longest - count, None) if left else slice(count)
            mask[row, place] = True
            for target, source in zip(padded, (q, k, v), strict=True):
                target[row, place] = source[row, firsts[row] : firsts[row] + count]
        out, state = attend(*padded, span, state=state, token_mask=mask)
        assert out.isfinite().all()
        for row, count in enumerate(counts):
            end = firsts[row] + count
            wanted = written_out(q[row, :end], k[row, :end], v[row, :end], span)[firsts[row] :]
            torch.testing.assert_close(out[row][mask[row]], wanted)
        firsts = tuple(a + b for a, b in zip(firsts, counts, strict=True))  # type: ignore[assignment]


STATES = {
    "sliding_window": {"window": 4, "sinks": 2},
    "gla": {"window": 4, "window_sinks": 2},
    "gated_deltanet": {"window": 3},
}
"""Mixers with a state of keys and values, and their options: a window with sinks, and intra-layer hybrids."""


def student(make_teacher: Make, name: str = "sliding_window", **changes: Any) -> StudentForCausalLM:
    mixers = [name, name, "softmax"]
    return build_student(make_teacher(layers=3, **changes), mixers, options={name: STATES[name]})


def ids(rows: int = 2, length: int = 14) -> Tensor:
    return torch.randint(0, 61, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@torch.no_grad()
def test_a_wide_window_with_sinks_is_the_teacher(make_teacher: Make, family: str) -> None:
    teacher = make_teacher(family)
    options = {"sliding_window": {"window": 20, "sinks": 2}}
    found = build_student(teacher, "sliding_window", options=options)(ids()).logits
    torch.testing.assert_close(found, teacher(ids()).logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_matrix_mixes_as_the_layer_does(make_teacher: Make) -> None:
    mixer = student(make_teacher).model.layers[0].self_attn
    x = torch.randn(1, 9, 32)
    angles = student(make_teacher).model.rotary_emb(x, torch.arange(9)[None])
    weights, values = mixer.attention_matrix(x, angles)
    mixed = torch.einsum("bhts,bshv->bthv", weights, values).flatten(2)
    torch.testing.assert_close(mixer(x, position_embeddings=angles)[0], mixer.o_proj(mixed))
    assert (weights[0, 0, 8] > 0).tolist() == [True, True, False, False, False, True, True, True, True]


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize("name", STATES)
@torch.no_grad()
def test_packed_padded_and_cached_students_agree(make_teacher: Make, name: str, family: str) -> None:
    model = student(make_teacher, name, family=family).double()
    row = ids(1)
    packed = model(row, cu_seqlens=torch.tensor([0, 5, 14])).logits
    torch.testing.assert_close(packed[:, :5], model(row[:, :5]).logits)
    torch.testing.assert_close(packed[:, 5:], model(row[:, 5:]).logits)
    rows = model.model(row, cu_seqlens=torch.tensor([0, 5, 7, 14]), row_length=7).last_hidden_state
    torch.testing.assert_close(rows[:, 7:], model.model(row[:, 7:]).last_hidden_state)
    mask = torch.ones(2, 14, dtype=torch.long)
    mask[0, :6] = 0
    settings = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    settings |= {"output_logits": True, "return_dict_in_generate": True}
    cached, plain = (model.generate(ids(), use_cache=use, **settings) for use in (True, False))
    torch.testing.assert_close(torch.stack(cached.logits), torch.stack(plain.logits))
    alone = model.generate(ids()[:1, 6:], **{**settings, "attention_mask": mask[:1, 6:]})
    torch.testing.assert_close(torch.stack(cached.logits)[:, :1], torch.stack(alone.logits))
    cache = model(ids(), use_cache=True).past_key_values
    spec = model.model.layers[1].self_attn.cache_spec()
    found = {name: tuple(x.shape[1:]) for name, x in cache.layers[1].read().items()}
    assert found == dict(spec.states)


@pytest.mark.parametrize("name", STATES)
def test_the_torch_engine_carries_the_state(make_teacher: Make, name: str) -> None:
    tokenizer = pocket_tokenizer()
    assert_engine_responds_as(student(make_teacher, name, vocab_size=len(tokenizer)), tokenizer, 9)


def test_what_cannot_be_done_is_refused(make_teacher: Make) -> None:
    with pytest.raises(ConfigError, match="sinks = -1: must be 0 or more"):
        build_student(make_teacher(), "sliding_window", options={"sliding_window": {"sinks": -1}})
    for name in STATES:
        with pytest.raises(ConfigError, match=f"the mixer {name} cannot be served by vLLM; use --engine"):
            validate_student(student(make_teacher, name).config, 1)
    with pytest.raises(ConfigError, match="sliding_window layers need sdpa or eager"):
        check_attention("flash_attention_2", student(make_teacher).model)
