"""RMSNorm with the residual sum before it as Triton kernels, for CUDA.

Each reads and writes its tensors once. fla's norm takes one row at a time in its backward pass, which at a
width of 576 leaves most of the GPU waiting; these take several.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 4
"""Rows that a program holds at a time."""
PROGRAMS = 1024
"""Programs of a norm's backward pass, each with a partial sum of the weight's gradient."""


@triton.jit
def _norm_forward(  # type: ignore[no-untyped-def]
    x, residual, hidden, weight, out, scales, rows, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    place = row[:, None] * WIDTH + column[None, :]
    inside = (row[:, None] < rows) & (column[None, :] < WIDTH)
    value = tl.load(x + place, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        value += tl.load(residual + place, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(hidden.dtype.element_ty)
        tl.store(hidden + place, rounded, mask=inside)
        value = rounded.to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(value * value, 1) / WIDTH + eps)
    tl.store(scales + row, scale, mask=row < rows)
    # Rounded before the weight, as transformers does.
    normed = (value * scale[:, None]).to(out.dtype.element_ty).to(tl.float32)
    factor = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    tl.store(out + place, (normed * factor[None, :]).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _norm_backward(  # type: ignore[no-untyped-def]
    hidden, weight, scales, d_out, d_hidden, d_x, partial, rows,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, ADDS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    factor = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    d_weight = tl.zeros([BLOCK], tl.float32)
    program = tl.program_id(0).to(tl.int64)
    for tile in range(TILES):
        row = (program * TILES + tile) * ROWS + tl.arange(0, ROWS)
        place = row[:, None] * WIDTH + column[None, :]
        inside = (row[:, None] < rows) & (column[None, :] < WIDTH)
        scale = tl.load(scales + row, mask=row < rows, other=0.0)
        normed = tl.load(hidden + place, mask=inside, other=0.0).to(tl.float32) * scale[:, None]
        given = tl.load(d_out + place, mask=inside, other=0.0).to(tl.float32)
        d_weight += tl.sum(given * normed, 0)
        given *= factor[None, :]
        d_value = (given - normed * (tl.sum(given * normed, 1) / WIDTH)[:, None]) * scale[:, None]
        if ADDS:
            d_value += tl.load(d_hidden + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(d_x + place, d_value.to(d_x.dtype.element_ty), mask=inside)
    tl.store(partial + program * WIDTH + column, d_weight, mask=column < WIDTH)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        width = x.shape[-1]
        rows = x.numel() // width
        hidden = x if residual is None else torch.empty_like(x)
        out = torch.empty_like(x)
        scales = torch.empty(rows, dtype=torch.float32, device=x.device)
        _norm_forward[(triton.cdiv(rows, ROWS),)](
            x, x if residual is None else residual.contiguous(), hidden, weight, out, scales, rows, eps,
            WIDTH=width, BLOCK=triton.next_power_of_2(width), ROWS=ROWS, ADDS=residual is not None,
            num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(hidden, weight, scales)
        ctx.adds = residual is not None
        ctx.set_materialize_grads(False)
        return out, hidden

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_hidden: Tensor | None) -> Any:
        if d_out is None:
            return d_hidden, d_hidden if ctx.adds else None, None, None
        hidden, weight, scales = ctx.saved_tensors
        width, rows = hidden.shape[-1], scales.numel()
        tiles = triton.cdiv(triton.cdiv(rows, ROWS), PROGRAMS)
        programs = triton.cdiv(triton.cdiv(rows, ROWS), tiles)
        partial = torch.empty(programs, width, dtype=torch.float32, device=hidden.device)
        d_x = torch.empty_like(hidden)
        d_out = d_out.contiguous()
        _norm_backward[(programs,)](
            hidden, weight, scales, d_out, d_out if d_hidden is None else d_hidden.contiguous(), d_x, partial,
            rows, WIDTH=width, BLOCK=triton.next_power_of_2(width), ROWS=ROWS, TILES=tiles,
            ADDS=d_hidden is not None, num_warps=4,
        )  # fmt: skip
        d_weight = partial.sum(0).to(weight.dtype) if ctx.needs_input_grad[2] else None
        return d_x, d_x if ctx.adds else None, d_weight, None


def norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """RMSNorm of x + residual, and that sum itself.

    The sum comes out of the same function so that its gradient is added in the norm's backward pass.

    Args:
        x, residual: [..., D], in one dtype; without a residual the sum is x.
    """
    normed, hidden = _Norm.apply(x, residual, weight, eps)
    return normed, hidden
