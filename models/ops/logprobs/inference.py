"""Log-probabilities of target tokens, and whether each is the argmax, from one reading of the logits.

In torch the logits of a scoring pass are converted to float32, normalized, written out and reduced, which
reads or writes the largest tensor of a small model six times.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalsuite.models.ops.launch import keep_compiled

BLOCK = 2048
"""Logits of a row that a program reads at once."""


@keep_compiled
@triton.jit(do_not_specialize=["first_row", "vocabulary"])
def _target_logprobs_kernel(  # type: ignore[no-untyped-def]
    logits, first_row, bounds, tokens, logprobs, is_argmax, vocabulary, logits_row, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_row
    row += first_row
    lane = tl.arange(0, BLOCK)
    # Each lane holds the maximum of its own logits, where it lies, and the sum of exp(logit − maximum).
    maximum = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    place = lane
    for first in range(0, vocabulary, BLOCK):
        index = first + lane
        value = tl.load(logits + index, mask=index < vocabulary, other=-float("inf")).to(tl.float32)
        # Equal infinities have no difference.
        ratio = tl.where(value == maximum, 1.0, tl.exp(-tl.abs(value - maximum)))
        larger = value > maximum
        total = tl.where(larger, total * ratio + 1, total + ratio)
        place = tl.where(larger, index, place)
        maximum = tl.where(larger, value, maximum)
    highest = tl.max(maximum, 0)
    # NaN for a row that holds NaN or +∞, or nothing but −∞, as in torch.
    log_total = tl.log(tl.sum(total * tl.exp(maximum - highest), 0))
    best = tl.min(tl.where(maximum == highest, place, vocabulary), 0)
    for target in range(tl.load(bounds + row), tl.load(bounds + row + 1)):
        token = tl.load(tokens + target)
        value = tl.load(logits + token).to(tl.float32)
        tl.store(logprobs + target, value - highest - log_total)
        tl.store(is_argmax + target, (token == best).to(tl.int8))


def row_logprobs(
    logits: Tensor, first_row: int, bounds: Tensor, tokens: Tensor, logprobs: Tensor, is_argmax: Tensor
) -> tuple[Tensor, Tensor]:
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    rows, vocabulary = logits.shape
    _target_logprobs_kernel[(rows,)](
        logits, first_row, bounds, tokens, logprobs, is_argmax.view(torch.int8), vocabulary, logits.stride(0),
        BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip
    return logprobs, is_argmax
