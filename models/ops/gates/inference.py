"""Gates of the delta rule without gradients."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalsuite.models.ops.launch import keep_compiled
from evalsuite.models.ops.numerics import as_rows

GATES = 1024
"""Gates of one program."""


@keep_compiled
@triton.jit(do_not_specialize=["count"])
def _delta_gates_kernel(  # type: ignore[no-untyped-def]
    a, b, bias, rate, log_decay, beta, count, a_row, b_row, most, HEADS: tl.constexpr, BLOCK: tl.constexpr
):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    row, head = index // HEADS, index % HEADS
    logit = tl.load(a + row * a_row + head, mask=mask, other=0.0).to(tl.float32)
    logit += tl.load(bias + head, mask=mask, other=0.0).to(tl.float32)
    # softplus(x) = max(x, 0) + log(1 + e^−|x|); the quotient undoes the rounding of the logarithm's argument.
    small = tl.exp(-tl.abs(logit))
    one = 1 + small
    log1p = tl.where(one == 1, small, tl.log(one) * (small / tl.where(one == 1, 1.0, one - 1)))
    softplus = tl.maximum(logit, 0.0) + log1p
    speed = tl.exp(tl.load(rate + head, mask=mask, other=0.0).to(tl.float32))
    tl.store(log_decay + index, -speed * softplus, mask=mask)
    strength = tl.sigmoid(tl.load(b + row * b_row + head, mask=mask, other=0.0).to(tl.float32))
    tl.store(beta + index, most * strength, mask=mask)


def gates_of_logits(a: Tensor, b: Tensor, bias: Tensor, rate: Tensor, most: float) -> tuple[Tensor, Tensor]:
    (a, a_row), (b, b_row) = as_rows(a), as_rows(b)
    count = a.numel()
    log_decay, beta = (
        torch.empty_like(each, dtype=torch.float32, memory_format=torch.contiguous_format) for each in (a, b)
    )
    _delta_gates_kernel[(-(-count // GATES),)](
        a, b, bias, rate, log_decay, beta, count, a_row, b_row, most, HEADS=a.shape[-1], BLOCK=GATES
    )
    return log_decay, beta
