"""Log-probabilities of target tokens, and whether each is the argmax."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from evalsuite.models.ops.dispatch import Draw, Kernel, op


def _samples(draw: Draw) -> Iterator[tuple[Any, ...]]:
    # A multiple of 16, as most vocabularies: Triton compiles others apart.
    logits = draw(4, 2064)
    # The first of equal logits, in the same lane and in others.
    logits[1, [3, 2051]] = logits[2, [1, 7]] = 9
    bounds = torch.tensor([0, 1, 3, 5, 6], device=logits.device)
    tokens = torch.tensor([5, 3, 2051, 1, 7, 2056], device=logits.device)
    yield logits, 0, bounds, tokens, torch.empty_like(tokens, dtype=torch.float32), tokens > 0


@op(inference=Kernel(module="inference", samples=_samples))
def row_logprobs(
    logits: Tensor, first_row: int, bounds: Tensor, tokens: Tensor, logprobs: Tensor, is_argmax: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-softmax in float32 at some tokens of each row, and whether they are the row's argmax.

    Among equal logits the first is the argmax, which torch promises on every device. The log-probabilities of
    a row with NaN or +∞, or without finite logits, are NaN, and its argmax is undefined.

    Args:
        logits: [R, V].
        first_row: number of the first of these rows among those of `bounds`.
        bounds: int64 [all rows + 1]; row r has the targets from bounds[r] up to bounds[r + 1].
        tokens: int64 [N], the targets.
        logprobs: float32 [N], is_argmax: bool [N]; written at the targets of these rows, and returned.
    """
    ends = bounds[first_row : first_row + len(logits) + 1]
    row = torch.repeat_interleave(torch.arange(len(logits), device=logits.device), ends.diff())
    low, high = ends[[0, -1]].tolist()
    token = tokens[low:high]
    logprobs[low:high] = logits.log_softmax(-1, dtype=torch.float32)[row, token]
    is_argmax[low:high] = _is_argmax(logits, row, token)
    return logprobs, is_argmax


def _is_argmax(logits: Tensor, row: Tensor, token: Tensor) -> Tensor:
    if logits.is_cuda:
        return logits.argmax(-1)[row] == token
    # On a CPU argmax is several times slower than amax. Few targets reach the maximum, and among ties only
    # the first is the argmax.
    best = logits[row, token] == logits.amax(-1)[row]
    top = best.nonzero()[:, 0]
    best[top] = logits[row[top]].argmax(-1) == token[top]
    return best
