"""Which implementation of target log-probabilities runs, and what it is given."""

import pytest
import torch
from torch import Tensor

from evalsuite.models.inference.logprobs import TargetIndex, target_logprobs
from evalsuite.models.ops.logprobs import row_logprobs


@pytest.mark.parametrize("applies", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
def test_a_kernel_serves_passes_without_gradients(
    applies: bool, gradients: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def stand_in(
        logits: Tensor, first_row: int, bounds: Tensor, tokens: Tensor, logprobs: Tensor, is_argmax: Tensor
    ) -> None:
        calls.append(len(logits))
        for row, (start, end) in enumerate(
            zip(bounds[first_row:], bounds[first_row + 1 : first_row + 1 + len(logits)], strict=False)
        ):
            chosen = tokens[start:end]
            logprobs[start:end] = logits[row].log_softmax(-1)[chosen]
            is_argmax[start:end] = logits[row].argmax() == chosen

    weight = torch.randn(30, 8)
    hidden = torch.randn(9, 8)
    # Rows 1, 5 and 8 have no target; row 3 has two.
    rows, tokens = [0, 2, 3, 3, 4, 6, 7], [4, 9, int((hidden @ weight.T)[3].argmax()), 2, 0, 29, 11]

    def compute(max_rows: int) -> tuple[Tensor, Tensor]:
        with torch.set_grad_enabled(gradients):
            return target_logprobs(lambda x: x @ weight.T, hidden, rows, tokens, max_rows)

    expected = compute(4)
    assert expected[1].tolist()[2]
    monkeypatch.setattr(row_logprobs, "load", lambda kind: stand_in)
    monkeypatch.setattr(row_logprobs, "proven", lambda *_: applies)
    monkeypatch.setattr("evalsuite.models.ops.dispatch.use_triton", lambda x: True)
    for max_rows in (4, 100):
        found = compute(max_rows)
        for mine, other in zip(found, expected, strict=True):
            torch.testing.assert_close(mine, other)
    assert calls == ([4, 2, 6] if applies and not gradients else [])


def test_targets_come_in_the_order_of_their_rows() -> None:
    targets = TargetIndex()
    targets.add(5, [(7, 8)], 0)
    targets.add(0, [(1,)], 1)
    other = TargetIndex()
    other.add(2, [(3, 4, 9)], 2)
    targets.extend(other, 3)
    rows, tokens, slots = (each.tolist() for each in targets.in_order())
    # Of targets of one row those that were added first come first.
    assert rows == [0, 5, 5, 6, 6, 7]
    assert tokens == [1, 7, 3, 8, 4, 9]
    assert slots == [1, 0, 2, 0, 2, 2]
