"""RMSNorm fused with the preceding residual addition, forward and backward.

fla's norm processes one row at a time in its backward pass, which underutilises the GPU at a width of 576;
these kernels process several rows of a narrow norm.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalsuite.models.ops.rms_norm import Gain
from evalsuite.models.ops.tuning.candidates import FITTING_ROWS, row_configs

PROGRAMS = 1024
"""Programs of the backward pass, each with a partial sum of the weight's gradient."""


@triton.autotune(row_configs(), ["WIDTH", "HAS_RESIDUAL"], prune_configs_by=FITTING_ROWS)
@triton.jit
def _rms_norm_forward_kernel(  # type: ignore[no-untyped-def]
    x, residual, hidden, weight, out, scales, rows, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    ROUNDED_FIRST: tl.constexpr, ONE_PLUS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    index = row[:, None] * WIDTH + column[None, :]
    mask = (row[:, None] < rows) & (column[None, :] < WIDTH)
    value = tl.load(x + index, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        value += tl.load(residual + index, mask=mask, other=0.0).to(tl.float32)
        rounded = value.to(hidden.dtype.element_ty)
        tl.store(hidden + index, rounded, mask=mask)
        value = rounded.to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(value * value, 1) / WIDTH + eps)
    tl.store(scales + row, scale, mask=row < rows)
    normed = value * scale[:, None]
    if ROUNDED_FIRST:
        normed = normed.to(out.dtype.element_ty).to(tl.float32)
    w = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    if ONE_PLUS:
        w += 1
    tl.store(out + index, (normed * w[None, :]).to(out.dtype.element_ty), mask=mask)


@triton.autotune(row_configs(), ["WIDTH", "HAS_D_HIDDEN"], prune_configs_by=FITTING_ROWS)
@triton.jit
def _rms_norm_backward_kernel(  # type: ignore[no-untyped-def]
    hidden, weight, scales, d_out, d_hidden, d_x, partial, rows,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, HAS_D_HIDDEN: tl.constexpr,
    ONE_PLUS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK)
    w = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    if ONE_PLUS:
        w += 1
    d_weight = tl.zeros([BLOCK], tl.float32)
    program = tl.program_id(0).to(tl.int64)
    tiles = tl.cdiv(rows, ROWS * tl.num_programs(0))
    for tile in range(tiles):
        row = (program * tiles + tile) * ROWS + tl.arange(0, ROWS)
        index = row[:, None] * WIDTH + column[None, :]
        mask = (row[:, None] < rows) & (column[None, :] < WIDTH)
        scale = tl.load(scales + row, mask=row < rows, other=0.0)
        normed = tl.load(hidden + index, mask=mask, other=0.0).to(tl.float32) * scale[:, None]
        d_normed = tl.load(d_out + index, mask=mask, other=0.0).to(tl.float32)
        d_weight += tl.sum(d_normed * normed, 0)
        d_normed *= w[None, :]
        d_value = (d_normed - normed * (tl.sum(d_normed * normed, 1) / WIDTH)[:, None]) * scale[:, None]
        if HAS_D_HIDDEN:
            d_value += tl.load(d_hidden + index, mask=mask, other=0.0).to(tl.float32)
        tl.store(d_x + index, d_value.to(d_x.dtype.element_ty), mask=mask)
    tl.store(partial + program * WIDTH + column, d_weight, mask=column < WIDTH)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        eps: float,
        residual: Tensor | None = None,
        gain: Gain = "rounded_first",
    ) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        width = x.shape[-1]
        rows = x.numel() // width
        hidden = x if residual is None else torch.empty_like(x)
        out = torch.empty_like(x)
        scales = torch.empty(rows, dtype=torch.float32, device=x.device)
        _rms_norm_forward_kernel[lambda meta: (triton.cdiv(rows, meta["ROWS"]),)](
            x, x if residual is None else residual.contiguous(), hidden, weight, out, scales, rows, eps,
            WIDTH=width, BLOCK=triton.next_power_of_2(width), HAS_RESIDUAL=residual is not None,
            ROUNDED_FIRST=gain == "rounded_first", ONE_PLUS=gain == "one_plus",
        )  # fmt: skip
        ctx.save_for_backward(hidden, weight, scales)
        ctx.has_residual, ctx.one_plus = residual is not None, gain == "one_plus"
        ctx.set_materialize_grads(False)
        return out, hidden

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_hidden: Tensor | None) -> Any:
        if d_out is None:
            return d_hidden, None, None, d_hidden if ctx.has_residual else None, None
        hidden, weight, scales = ctx.saved_tensors
        width, rows = hidden.shape[-1], scales.numel()
        programs = min(PROGRAMS, rows)
        partial = torch.empty(programs, width, dtype=torch.float32, device=hidden.device)
        d_x = torch.empty_like(hidden)
        d_out = d_out.contiguous()
        _rms_norm_backward_kernel[(programs,)](
            hidden, weight, scales, d_out, d_out if d_hidden is None else d_hidden.contiguous(), d_x, partial,
            rows, WIDTH=width, BLOCK=triton.next_power_of_2(width), HAS_D_HIDDEN=d_hidden is not None,
            ONE_PLUS=ctx.one_plus,
        )  # fmt: skip
        d_weight = partial.sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        return d_x, d_weight, None, d_x if ctx.has_residual else None, None


rms_norm = _RMSNorm.apply


def l2_norm(*parts: Tensor) -> tuple[Tensor, ...]:
    from fla.modules.norm.l2norm import l2norm

    return tuple(l2norm(x) for x in parts)
