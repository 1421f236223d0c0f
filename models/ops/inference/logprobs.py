"""Log-probabilities of target tokens, and whether each is the argmax, from one reading of the logits.

In torch the logits of a scoring pass are converted to float32, normalized, written out and reduced, which
reads or writes the largest tensor of a small model six times.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalsuite.models.ops.inference.launch import keep_compiled
from evalsuite.models.ops.inference.proof import proves_right, relative_difference

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


def target_logprobs(
    logits: Tensor, first_row: int, bounds: Tensor, tokens: Tensor, logprobs: Tensor, is_argmax: Tensor
) -> None:
    """Log-softmax in float32 at some tokens of each row, and whether they are the row's argmax.

    Among equal logits the first is the argmax, which torch promises on every device. The log-probabilities of
    a row with NaN or +∞, or without finite logits, are NaN as torch's are, and its argmax is undefined.

    Args:
        logits: [R, V] in float32, bfloat16 or float16.
        first_row: number of the first of these rows among those of `bounds`.
        bounds: int64 [all rows + 1]; row r has the targets from bounds[r] up to bounds[r + 1].
        tokens: int64 [N], the targets.
        logprobs: float32 [N], is_argmax: bool [N]; written at the targets of these rows.
    """
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    rows, vocabulary = logits.shape
    _target_logprobs_kernel[(rows,)](
        logits, first_row, bounds, tokens, logprobs, is_argmax.view(torch.int8), vocabulary, logits.stride(0),
        BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip


def applies(x: Tensor) -> bool:
    """Whether the kernel proves right on the device and in the dtype of `x`."""
    return _proven(x.device, x.dtype)


@functools.cache
def _proven(device: torch.device, dtype: torch.dtype) -> bool:
    return proves_right(lambda: _deviations(device, dtype), dtype, "log-probabilities in separate operations")


def _deviations(device: torch.device, dtype: torch.dtype) -> list[float]:
    """Relative difference of log-probabilities, and share of wrong argmaxes."""
    draw = torch.Generator().manual_seed(0)
    # A multiple of 16, as most vocabularies: Triton compiles others apart.
    logits = torch.randn(4, BLOCK + 16, generator=draw).to(device, dtype)
    # The first of equal logits, in the same lane and in others.
    logits[1, [3, BLOCK + 3]] = logits[2, [1, 7]] = 9
    row = torch.tensor([0, 1, 1, 2, 2, 3], device=device)
    tokens = torch.tensor([5, 3, BLOCK + 3, 1, 7, BLOCK + 8], device=device)
    logprobs, is_argmax = torch.empty(6, device=device), torch.empty(6, dtype=torch.bool, device=device)
    bounds = torch.tensor([0, 1, 3, 5, 6], device=device)
    target_logprobs(logits, 0, bounds, tokens, logprobs, is_argmax)
    expected = logits.float()
    wrong = is_argmax != (expected.argmax(-1)[row] == tokens)
    return [
        relative_difference(logprobs, expected.log_softmax(-1)[row, tokens]),
        float(wrong.float().mean()),
    ]
