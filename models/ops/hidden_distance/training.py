"""Squared distance between hidden states of student and teacher, and its gradient."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalsuite.models.ops.tuning.candidates import FITTING_ROWS, block_configs, row_configs


@triton.autotune(row_configs(), ["WIDTH"], prune_configs_by=FITTING_ROWS)
@triton.jit
def _distances_kernel(  # type: ignore[no-untyped-def]
    student, teacher, distance, teacher_norm, rows,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    index = row[:, None] * WIDTH + column[None, :]
    mask = (row[:, None] < rows) & (column[None, :] < WIDTH)
    t = tl.load(teacher + index, mask=mask, other=0.0).to(tl.float32)
    difference = tl.load(student + index, mask=mask, other=0.0).to(tl.float32) - t
    tl.store(distance + row, tl.sum(difference * difference, 1), mask=row < rows)
    tl.store(teacher_norm + row, tl.sum(t * t, 1), mask=row < rows)


@triton.autotune(block_configs(), [])
@triton.jit
def _distance_backward_kernel(student, teacher, factor, out, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    t = tl.load(teacher + index, mask=mask, other=0.0).to(tl.float32)
    difference = tl.load(student + index, mask=mask, other=0.0).to(tl.float32) - t
    tl.store(out + index, (2 * difference * tl.load(factor)).to(out.dtype.element_ty), mask=mask)


class _SquaredDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor) -> Tensor:
        student, teacher = student.contiguous(), teacher.contiguous()
        width = student.shape[-1]
        rows = student.numel() // width
        sums = torch.empty(2, rows, dtype=torch.float32, device=student.device)
        _distances_kernel[lambda meta: (triton.cdiv(rows, meta["ROWS"]),)](
            student, teacher, sums[0], sums[1], rows, WIDTH=width, BLOCK=triton.next_power_of_2(width)
        )
        ctx.save_for_backward(student, teacher)
        return sums.sum(1)[0]

    @staticmethod
    def backward(ctx: Any, d_distance: Tensor) -> Any:
        student, teacher = ctx.saved_tensors
        out = torch.empty_like(student)
        count = student.numel()
        _distance_backward_kernel[lambda meta: (triton.cdiv(count, meta["BLOCK"]),)](
            student, teacher, d_distance, out, count
        )
        return out, None


squared_distance = _SquaredDistance.apply
