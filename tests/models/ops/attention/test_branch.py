"""The kernel for rows that continue a cache computes masked attention, without copies of it.

Runs on a CUDA device, or on a CPU under Triton's interpreter (see test_interpreter.py).
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.models.ops.device import DEVICE, INTERPRETED, NEEDS_DEVICE

# The interpreter has no products of bfloat16 matrices; on a device only layers in half precision qualify.
DTYPES = [torch.float16, torch.float32 if INTERPRETED else torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}

pytestmark = NEEDS_DEVICE


@pytest.mark.parametrize(
    ("rows", "tokens", "heads", "kv_heads", "known", "width"),
    [(3, 1, 4, 4, 5, 24), (4, 7, 3, 1, 130, 16), (2, 67, 2, 1, 64, 80)]
    + [(9, 30, 9, 3, 70, 64), (5, 200, 8, 2, 300, 128), (2, 16, 2, 2, 1, 256)] * (not INTERPRETED),
)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [None, 1, 9, 65])
def test_equals_masked_attention(
    rows: int,
    tokens: int,
    heads: int,
    kv_heads: int,
    known: int,
    width: int,
    window: int | None,
    dtype: torch.dtype,
) -> None:
    from evalsuite.models.ops.attention import branch_attention as op
    from evalsuite.models.ops.attention.branch import branch_attention

    torch.manual_seed(0)
    # In parts of larger tensors, and nothing behind the keys of a parent's row may be read.
    parents = torch.randn(2, 3, kv_heads, known + 9, width, device=DEVICE).to(dtype)[:, :, :, :known]
    lengths = torch.tensor([known, 1, (known + 1) // 2], device=DEVICE)
    hidden = torch.arange(known, device=DEVICE) >= lengths[:, None]
    poisoned = parents.masked_fill(hidden[None, :, None, :, None], torch.nan)
    own = torch.randn(2, rows, tokens, kv_heads, width, device=DEVICE).to(dtype).transpose(2, 3)
    query = torch.randn(rows, heads, tokens, width, device=DEVICE).to(dtype).transpose(1, 2)
    parent_rows = torch.randint(3, (rows,), device=DEVICE)
    parent_rows[0] = 1
    found = branch_attention(query, *own, *poisoned, parent_rows, lengths, width**-0.5, window)
    exact = (each.double() for each in (query, *own, *parents))
    expected = op.reference(*exact, parent_rows, lengths, width**-0.5, window)
    assert found.shape == (rows, tokens, heads, width)
    error = (found.double() - expected).norm() / expected.norm()
    assert error < TOLERANCE[dtype], error


def test_later_tokens_change_nothing_before_them() -> None:
    from evalsuite.models.ops.attention.branch import branch_attention

    torch.manual_seed(0)
    parents, parent_rows = torch.randn(2, 1, 1, 5, 16, device=DEVICE), torch.zeros(1, device=DEVICE).long()
    lengths = torch.tensor([5], device=DEVICE)
    query, key, value = torch.randn(3, 1, 80, 1, 16, device=DEVICE)
    own = key.transpose(1, 2), value.transpose(1, 2)
    whole = branch_attention(query, *own, *parents, parent_rows, lengths, 0.25)
    for cut in (1, 63, 64, 65):
        part = branch_attention(
            query[:, :cut], *(each[:, :, :cut] for each in own), *parents, parent_rows, lengths, 0.25
        )
        torch.testing.assert_close(part, whole[:, :cut])


@pytest.mark.parametrize(
    ("family", "mixers"),
    [("llama", None), ("gemma3_text", None), ("qwen3", None), ("llama", ["gla", "softmax"])][
        : 2 if INTERPRETED else None
    ],
)
def test_layers_read_their_contexts_in_place(
    family: str, mixers: list[str] | None, make_teacher: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalsuite.models import build_student
    from evalsuite.models.decoder.build import to_decoder
    from evalsuite.models.inference.torch.model_runner import ModelRunner
    from evalsuite.models.mixers import SoftmaxMixer
    from evalsuite.models.ops.attention import branch as module
    from evalsuite.models.ops.attention import branch_attention

    model = to_decoder(make_teacher(family))
    if mixers is not None:
        model = build_student(model, mixers).eval()
    model = model.to(DEVICE, torch.float32 if INTERPRETED else torch.float16)
    runner = ModelRunner(model)
    fused = [layer for layer in model.modules() if isinstance(layer, SoftmaxMixer)]
    if INTERPRETED:
        runner.unpads, runner.storing = False, fused[0]
        monkeypatch.setattr(SoftmaxMixer, "stores_keys", True)
        monkeypatch.setattr("evalsuite.models.ops.dispatch.use_triton", lambda x: bool(fused))
    calls, right = [], module.branch_attention
    monkeypatch.setattr(module, "branch_attention", lambda *given: calls.append(1) or right(*given))
    logits = []
    with torch.inference_mode():
        _, cache = runner.prefill([[5, 6, 7, 8, 9], [11], [20, 21, 22]], keep=True)
        assert cache is not None
        rows, parent_rows = [[4, 7], [9, 8, 3], [6], [6, 5]], [2, 0, 1, 2]
        for applies in (True, False):
            monkeypatch.setattr(branch_attention, "proven", lambda *_, applies=applies: applies)
            before = len(calls)
            hidden, _ = runner.prefill(rows, parent=cache, parent_rows=parent_rows)
            assert len(calls) - before == (len(fused) if applies else 0)
            logits.append([hidden[i, : len(row)] for i, row in enumerate(rows)])
        # A cache that is kept holds its parents' keys in front of its own, with pads between them: both such
        # passes and those that continue it take copies.
        monkeypatch.setattr(branch_attention, "proven", lambda *_: True)
        before = len(calls)
        _, grown = runner.prefill(rows, parent=cache, parent_rows=parent_rows, keep=True)
        runner.prefill([[3], [4]], parent=grown, parent_rows=[0, 3])
        assert len(calls) == before
    for mine, plain in zip(*logits, strict=True):
        error = (mine.double() - plain.double()).norm() / plain.double().norm()
        assert error < (1e-5 if INTERPRETED else 1e-2), error
