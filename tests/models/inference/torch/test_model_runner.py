"""Decoder and head are run separately only if that reproduces the model's logits."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from evalsuite.foundation import ConfigError
from evalsuite.models import build_student
from evalsuite.models.decoder.build import to_decoder
from evalsuite.models.inference.torch import norms
from evalsuite.models.inference.torch.kv_cache import BranchingCache
from evalsuite.models.inference.torch.model_runner import ModelRunner
from evalsuite.models.mixers import SoftmaxMixer, cached_attention
from evalsuite.models.mixers.cached_attention import AttentionMasks


def test_post_processed_logits_are_refused(build: Callable[..., Any]) -> None:
    model = build("llama").model
    plain = model.forward

    def capped(*args: Any, **how: Any) -> Any:
        out = plain(*args, **how)
        out.logits = 3 * torch.tanh(out.logits / 3)
        return out

    model.forward = capped
    with pytest.raises(ConfigError, match="differs from the model's own logits"):
        ModelRunner(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_massive_activations_in_half_precision_are_accepted(
    build: Callable[..., Any], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a GPU, where a norm rounds in another place.
    monkeypatch.setattr(norms.replace_norms, "__defaults__", (("cpu", "cuda"),))
    model = build("llama").model
    with torch.no_grad():
        # The first token's activations in one channel are a thousand times those of the others.
        model.model.embed_tokens.weight[0, 0] = 1000
        model.lm_head.weight.mul_(20)
    runner = ModelRunner(model.to(dtype))
    replaced = [each for each in runner.decoder.modules() if isinstance(each, norms.OneKernelNorm)]
    assert len(replaced) == 7


def test_contexts_are_read_in_place_where_their_keys_come_first(
    build: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = ModelRunner(to_decoder(build("llama").model))
    runner.unpads = False
    seen: list[AttentionMasks] = []
    forward = runner.forward

    def record(tokens: Any, positions: Any, cache: Any, masks: AttentionMasks, token_mask: Any) -> Any:
        seen.append(copy.copy(masks))
        # The layers run without the kernels' references.
        masks.cache_places = masks.branches = None
        return forward(tokens, positions, cache, masks, token_mask)

    monkeypatch.setattr(SoftmaxMixer, "reads_parents", True)
    monkeypatch.setattr(runner, "storing", runner.decoder.layers[0].self_attn)
    monkeypatch.setattr(runner, "forward", record)
    with torch.inference_mode():
        _, cache = runner.prefill([[5, 6, 7], [8]], keep=True)
        assert cache is not None
        runner.prefill([[4, 7], [9, 8], [6]], parent=cache, parent_rows=[1, 0, 1])
        _, grown = runner.prefill([[4, 7], [9, 8]], parent=cache, parent_rows=[1, 0], keep=True)
        assert grown is not None
        runner.prefill([[3]], parent=grown, parent_rows=[0])
        runner.prefill([[3]], parent=grown.compact(), parent_rows=[0])
        _, prefix = runner.prefill([[5, 6, 7]], keep=True)
        assert prefix is not None
        runner.prefill([[3], [4]], parent=prefix.truncate([2, 1]), parent_rows=[0, 1])
    rows = [None if masks.branches is None else [each.tolist() for each in masks.branches] for masks in seen]
    assert rows == [
        None,
        [[1, 0, 1], [3, 1]],
        None,  # The cache that is kept holds all keys of a row together,
        None,  # with pads between them,
        [[0], [3, 5]],  # unless they are moved.
        None,
        [[0, 1], [2, 1]],
    ]
    # Places in room for the new keys alone, or behind the parent's.
    assert seen[1].cache_places is not None
    assert seen[1].cache_places.tolist() == [0, 1] * 3
    assert seen[2].cache_places is not None
    assert seen[2].cache_places.tolist() == [3, 4] * 2


def test_branches_read_the_states_of_their_parents_where_they_are(make_teacher: Callable[..., Any]) -> None:
    runner = ModelRunner(build_student(make_teacher("llama"), "gated_deltanet").eval())
    with torch.inference_mode():
        _, parent = runner.prefill([[5, 6, 7], [8, 9]], keep=True)
    assert parent is not None
    before = [{name: state.clone() for name, state in layer.recurrent.items()} for layer in parent.layers]
    rows = torch.tensor([1, 0, 1])
    passing = BranchingCache(len(parent.layers), parent, rows, keep=False).layers[0]
    lent, access = passing.lend(slots=True)
    assert lent is parent.layers[0].recurrent
    assert access.discards
    assert access.slots is rows
    kept = BranchingCache(len(parent.layers), parent, rows, keep=True).layers[0].read()
    assert kept is not None
    for name, state in kept.items():
        assert torch.equal(state, parent.layers[0].recurrent[name][rows])
    with torch.inference_mode():
        runner.prefill([[3, 4], [4], [6, 7]], parent=parent, parent_rows=[1, 0, 1])
        _, child = runner.prefill([[3, 4], [4], [6, 7]], parent=parent, parent_rows=[1, 0, 1], keep=True)
    assert child is not None
    # Nothing was written over them.
    for layer, old in zip(parent.layers, before, strict=True):
        for name, state in layer.recurrent.items():
            assert torch.equal(state, old[name])
            assert len(child.layers[0].recurrent[name]) == 3


@pytest.mark.parametrize("unpads", [False, True])
@pytest.mark.parametrize("family", ["gemma2", "gemma3_text"])
def test_windows_of_long_texts_are_read_in_blocks(
    make_teacher: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, family: str, unpads: bool
) -> None:
    model = make_teacher(family)
    runner = ModelRunner(to_decoder(copy.deepcopy(model)))
    runner.unpads = unpads
    calls, attend = [], cached_attention.attend_with_state
    monkeypatch.setattr(
        cached_attention, "attend_with_state", lambda *x, **how: calls.append(1) or attend(*x, **how)
    )
    rows = [torch.randint(0, 61, (length,)).tolist() for length in (11, 3, 40)]
    with torch.inference_mode():
        hidden, _ = runner.prefill(rows)
        assert len(calls) == 1  # Of two layers, one has a window of five tokens.
        for row, found in zip(rows, hidden, strict=True):
            expected = model.model(input_ids=torch.tensor([row])).last_hidden_state[0]
            torch.testing.assert_close(found[: len(row)], expected, rtol=1e-4, atol=1e-4)
        runner.prefill([row[:10] for row in rows])
    assert len(calls) == 1
