"""The kernel reads logits once and gives what log-softmax and argmax give.

Runs on a CUDA device, or on a CPU under Triton's interpreter (see test_interpreter.py).
"""

import pytest
import torch
from torch import Tensor

from evalsuite.models.inference.logprobs import NON_FINITE_LOGPROBS, sum_responses, target_logprobs
from evalsuite.models.inference.requests import ScoreRequest
from tests.models.ops.device import DEVICE, INTERPRETED, NEEDS_DEVICE

pytestmark = NEEDS_DEVICE


@pytest.fixture(autouse=True)
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of logits that the kernel read, call by call."""
    from evalsuite.models.ops.logprobs import inference

    if INTERPRETED:
        monkeypatch.setattr("evalsuite.models.ops.dispatch.use_triton", lambda x: True)
    right, calls = inference.row_logprobs, []
    monkeypatch.setattr(
        inference, "row_logprobs", lambda *given: calls.append(len(given[0])) or right(*given)
    )
    return calls


def score(
    logits: Tensor, rows: list[int], tokens: list[int], max_rows: int = 1 << 20
) -> tuple[Tensor, Tensor]:
    with torch.inference_mode():
        return target_logprobs(lambda x: x, logits, rows, tokens, max_rows)


@pytest.mark.parametrize("vocabulary", [1, 7, 2048, 2049, 5003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("max_rows", [2, 100])
def test_equals_log_softmax_and_argmax(
    vocabulary: int, dtype: torch.dtype, max_rows: int, chosen: list[int]
) -> None:
    draw = torch.Generator().manual_seed(vocabulary)
    # Rounded to a few values, so that many are equal to the largest.
    logits = (torch.randn(9, vocabulary, generator=draw) * 4).round().to(DEVICE, dtype)
    rows = [0, 2, 2, 2, 3, 4, 5, 6, 8]
    tokens = torch.randint(vocabulary, (len(rows),), generator=draw).tolist()
    tokens[1], tokens[4] = int(logits[2].argmax()), int(logits[3].argmax())
    # The last of the largest, which is no argmax if there are several.
    tokens[5] = int((logits[4] == logits[4].max()).nonzero()[-1])
    found, is_argmax = score(logits, rows, tokens, max_rows)
    assert chosen[-len(range(0, 7, max_rows)) :] == [min(max_rows, 7 - i) for i in range(0, 7, max_rows)]
    exact = logits.double().log_softmax(-1)[rows, tokens]
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    expected = logits.float().cpu().argmax(-1)[rows] == torch.tensor(tokens)
    assert is_argmax.cpu().tolist() == expected.tolist()
    assert is_argmax[1]
    assert is_argmax[4]


@pytest.mark.parametrize(
    ("place", "value"), [(0, torch.nan), (2500, torch.nan), (2500, torch.inf), (slice(None), -torch.inf)]
)
def test_rows_that_are_not_finite(place: int | slice, value: float) -> None:
    logits = torch.randn(3, 3000, device=DEVICE)
    logits[1, place] = value
    # One that is −∞ alone makes no other token's probability undefined.
    logits[2, 5] = -torch.inf
    found, is_argmax = score(logits, [0, 1, 2, 2], [4, 4, 4, 5])
    assert found.isfinite().tolist() == [True, False, True, False]
    assert found[1].isnan()
    torch.testing.assert_close(found[2], logits[2].log_softmax(-1)[4])
    requests = [ScoreRequest((1,), ((1,),)) for _ in range(4)]
    responses = sum_responses(requests, [([0, 1, 2, 3], found, is_argmax)])
    assert [each.error for each in responses] == [None, NON_FINITE_LOGPROBS, None, NON_FINITE_LOGPROBS]


def test_a_row_that_starts_with_minus_infinity() -> None:
    logits = torch.full((1, 5000), -torch.inf, device=DEVICE)
    logits[0, 4100:4103] = torch.tensor([1.0, 3.0, 3.0])
    found, is_argmax = score(logits, [0, 0, 0], [4100, 4101, 4102])
    torch.testing.assert_close(found, logits[0].log_softmax(-1)[4100:4103])
    assert is_argmax.tolist() == [False, True, False]


def test_logits_of_extreme_size() -> None:
    logits = torch.tensor([[-3e38, 3e38, 0.0], [-1e4, -1e4 - 1, -1e4 - 2]], device=DEVICE)
    found, _ = score(logits, [0, 0, 1, 1], [0, 1, 0, 2])
    torch.testing.assert_close(found, logits.double().log_softmax(-1)[[0, 0, 1, 1], [0, 1, 0, 2]].float())


def test_rows_of_another_tensor() -> None:
    joined = torch.randn(4, 3, 100, device=DEVICE)
    for logits in (joined[:, 1], joined[0].mT[:, :2].mT, joined[:, :, 5]):
        found, is_argmax = score(logits, [0, 1], [1, 2])
        torch.testing.assert_close(found, logits.log_softmax(-1)[[0, 1], [1, 2]])
        assert is_argmax.tolist() == (logits.argmax(-1)[:2] == torch.tensor([1, 2], device=DEVICE)).tolist()
