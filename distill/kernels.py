"""Triton kernels of the losses, for CUDA; `chunked_loss` imports this module when it meets CUDA tensors.

In plain torch a chunk of logits is read and written about a dozen times; here it is read twice (the second
time from the cache) and written once, as its own gradient.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
"""Logits that a program holds at a time."""


@triton.jit
def _row_loss(  # type: ignore[no-untyped-def]
    student, teacher, labels, weights, ce_out, kl_out,
    student_stride, teacher_stride, inverse_temperature, ce_scale, kl_scale,
    vocabulary: tl.constexpr, HAS_CE: tl.constexpr, HAS_KL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One token: the losses of its row, and the row overwritten by its gradient."""
    row = tl.program_id(0).to(tl.int64)
    student += row * student_stride
    teacher += row * teacher_stride
    columns = tl.arange(0, BLOCK)

    # log Σ exp of both rows in one pass; the running sums are rescaled as larger logits turn up.
    most_s = -float("inf")
    most_t = -float("inf")
    sum_s = 0.0
    sum_t = 0.0
    for start in range(0, vocabulary, BLOCK):
        inside = start + columns < vocabulary
        s = tl.load(student + start + columns, mask=inside, other=-float("inf")).to(tl.float32)
        s *= inverse_temperature
        larger = tl.maximum(most_s, tl.max(s, 0))
        sum_s = sum_s * tl.exp(most_s - larger) + tl.sum(tl.exp(s - larger), 0)
        most_s = larger
        if HAS_KL:
            t = tl.load(teacher + start + columns, mask=inside, other=-float("inf")).to(tl.float32)
            t *= inverse_temperature
            larger = tl.maximum(most_t, tl.max(t, 0))
            sum_t = sum_t * tl.exp(most_t - larger) + tl.sum(tl.exp(t - larger), 0)
            most_t = larger
    log_sum_s = most_s + tl.log(sum_s)
    log_sum_t = 0.0
    if HAS_KL:
        log_sum_t = most_t + tl.log(sum_t)

    weight = tl.load(weights + row).to(tl.float32)
    label = -1
    if HAS_CE:
        label = tl.load(labels + row)
        own = tl.load(student + label).to(tl.float32) * inverse_temperature
        tl.store(ce_out + row, (log_sum_s - own) * weight)
    # Every lane has read the label's logit before any lane overwrites it.
    tl.debug_barrier()
    kl = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocabulary, BLOCK):
        inside = start + columns < vocabulary
        s = tl.load(student + start + columns, mask=inside, other=-float("inf")).to(tl.float32)
        log_s = s * inverse_temperature - log_sum_s
        p_s = tl.exp(log_s)
        gradient = tl.zeros([BLOCK], tl.float32)
        if HAS_CE:
            gradient += (p_s - (start + columns == label).to(tl.float32)) * ce_scale
        if HAS_KL:
            t = tl.load(teacher + start + columns, mask=inside, other=-float("inf")).to(tl.float32)
            log_t = t * inverse_temperature - log_sum_t
            p_t = tl.exp(log_t)
            kl += tl.where(inside, p_t * (log_t - log_s), 0.0)
            gradient += (p_s - p_t) * kl_scale
        tl.store(student + start + columns, (gradient * weight).to(student.dtype.element_ty), mask=inside)
    if HAS_KL:
        tl.store(kl_out + row, tl.sum(kl, 0) * weight)


def row_losses(
    logits: Tensor,
    teacher_logits: Tensor | None,
    labels: Tensor | None,
    weights: Tensor,
    *,
    ce: float,
    kl: float,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Weighted sums of CE and forward KL (times temperature²) over the rows of one chunk.

    Args:
        logits: the student's [C, V], overwritten by the gradient of ce · CE + kl · KL.
        teacher_logits: [C, V], needed where kl > 0.
        labels: int64 [C], needed where ce > 0, which asks for a temperature of 1.
        weights: of each token, float32 [C].
    """
    rows, vocabulary = logits.shape
    sums = torch.zeros(2, rows, dtype=torch.float32, device=logits.device)
    given = logits if teacher_logits is None else teacher_logits
    _row_loss[(rows,)](
        logits,
        given,
        weights if labels is None else labels,
        weights,
        sums[0],
        sums[1],
        logits.stride(0),
        given.stride(0),
        1 / temperature,
        ce,
        # d KL / d logits = (p_S − p_T) / τ, times the τ² that keeps its size comparable with CE's.
        kl * temperature,
        vocabulary=vocabulary,
        HAS_CE=ce > 0,
        HAS_KL=kl > 0,
        BLOCK=min(BLOCK, triton.next_power_of_2(vocabulary)),
        num_warps=8,
    )
    totals = sums.sum(1)
    return totals[0], totals[1] * temperature**2


@triton.jit
def _distances(  # type: ignore[no-untyped-def]
    student, teacher, apart, size, rows,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    place = row[:, None] * WIDTH + column[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < WIDTH)
    t = tl.load(teacher + place, mask=inside, other=0.0).to(tl.float32)
    difference = tl.load(student + place, mask=inside, other=0.0).to(tl.float32) - t
    tl.store(apart + row, tl.sum(difference * difference, 1), mask=row < rows)
    tl.store(size + row, tl.sum(t * t, 1), mask=row < rows)


@triton.jit
def _distance_gradient(student, teacher, factor, out, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    t = tl.load(teacher + place, mask=inside, other=0.0).to(tl.float32)
    difference = tl.load(student + place, mask=inside, other=0.0).to(tl.float32) - t
    tl.store(out + place, (2 * difference * tl.load(factor)).to(out.dtype.element_ty), mask=inside)


class _SquaredDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
        student, teacher = student.contiguous(), teacher.contiguous()
        width = student.shape[-1]
        rows = student.numel() // width
        sums = torch.empty(2, rows, dtype=torch.float32, device=student.device)
        _distances[(triton.cdiv(rows, 4),)](
            student, teacher, sums[0], sums[1], rows,
            WIDTH=width, BLOCK=triton.next_power_of_2(width), ROWS=4, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(student, teacher)
        apart, size = sums.sum(1)
        ctx.mark_non_differentiable(size)
        return apart, size

    @staticmethod
    def backward(ctx: Any, d_apart: Tensor, _: Tensor) -> Any:
        student, teacher = ctx.saved_tensors
        out = torch.empty_like(student)
        count = student.numel()
        _distance_gradient[(triton.cdiv(count, BLOCK),)](
            student, teacher, d_apart, out, count, BLOCK=BLOCK, num_warps=8
        )
        return out, None


def squared_distance(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Σ ‖s − t‖² and Σ ‖t‖² over all vectors [..., D]; the first has a gradient for the student."""
    apart, size = _SquaredDistance.apply(student, teacher)
    return apart, size
