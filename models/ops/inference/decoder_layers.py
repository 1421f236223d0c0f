"""What lies between the matrix products of a decoder layer, without gradients: norms of sums, gated values.

The kernels of training keep what their backward pass needs, choose a configuration at every launch, and take
contiguous tensors. These take parts of joined projections, whose rows lie apart.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from evalsuite.models.ops import reference
from evalsuite.models.ops.inference.launch import keep_compiled
from evalsuite.models.ops.inference.proof import proves_right, relative_difference
from evalsuite.models.ops.inference.rows import as_rows
from evalsuite.models.ops.recurrence.chunked import next_power_of_2

ELEMENTS = 2048
"""Elements of one program."""
MAX_BLOCK = 256
"""Most adjacent channels of one program that gates values."""


@keep_compiled
@triton.jit(do_not_specialize=["rows"])
def _add_norm_kernel(  # type: ignore[no-untyped-def]
    x, residual, weight, normed, total, rows, eps,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    index = row[:, None] * WIDTH + column[None, :]
    mask = (row[:, None] < rows) & (column[None, :] < WIDTH)
    value = tl.load(x + index, mask=mask, other=0.0).to(tl.float32)
    value += tl.load(residual + index, mask=mask, other=0.0).to(tl.float32)
    # The sum and the norm are rounded where separate operations round them.
    rounded = value.to(total.dtype.element_ty)
    tl.store(total + index, rounded, mask=mask)
    value = rounded.to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(value * value, 1) / WIDTH + eps)
    out = (value * scale[:, None]).to(normed.dtype.element_ty).to(tl.float32)
    out *= tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)[None, :]
    tl.store(normed + index, out.to(normed.dtype.element_ty), mask=mask)


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """RMSNorm of x + residual, and the sum.

    Args:
        x, residual: [..., D], in one dtype; copied if they are not contiguous.
        weight: gain [D].
        eps: added to the mean square.

    Returns:
        The norm and the sum, both new.
    """
    x, residual = x.contiguous(), residual.contiguous()
    width = x.shape[-1]
    block = next_power_of_2(width)
    rows, count = max(1, ELEMENTS // block), x.numel() // width
    normed, total = torch.empty_like(x), torch.empty_like(x)
    _add_norm_kernel[(-(-count // rows),)](
        x, residual, weight, normed, total, count, eps, WIDTH=width, BLOCK=block, ROWS=rows, num_warps=4
    )
    return normed, total


@keep_compiled
@triton.jit(do_not_specialize=["rows"])
def _gated_kernel(  # type: ignore[no-untyped-def]
    gate, x, out, rows, gate_row, x_row, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (row[:, None] < rows) & (column[None, :] < WIDTH)
    g = tl.load(gate + row[:, None] * gate_row + column[None, :], mask=mask, other=0.0).to(tl.float32)
    value = tl.load(x + row[:, None] * x_row + column[None, :], mask=mask, other=0.0).to(tl.float32)
    value *= g * tl.sigmoid(g)
    tl.store(out + row[:, None] * WIDTH + column[None, :], value.to(out.dtype.element_ty), mask=mask)


def gated(gate: Tensor, x: Tensor) -> Tensor:
    """silu(gate) · x, rounded once.

    Args:
        gate, x: [..., D] in one dtype, whose rows may lie apart by one stride.

    Returns:
        [..., D], contiguous.
    """
    (gate, gate_row), (x, x_row) = as_rows(gate), as_rows(x)
    width = x.shape[-1]
    # The largest power of two that divides the width, if it is not tiny.
    divisor = width & -width
    block = min(MAX_BLOCK, divisor if divisor >= 16 else next_power_of_2(width))
    rows, count = max(1, ELEMENTS // block), x.numel() // width
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _gated_kernel[(-(-count // rows), -(-width // block))](
        gate, x, out, count, gate_row, x_row, WIDTH=width, BLOCK=block, ROWS=rows, num_warps=4
    )
    return out


def applies(x: Tensor) -> bool:
    """Whether these kernels prove right on the device and in the dtype of `x`."""
    return _proven(x.device, x.dtype)


@functools.cache
def _proven(device: torch.device, dtype: torch.dtype) -> bool:
    return proves_right(lambda: _deviations(device, dtype), dtype, "decoder layers use separate operations")


def _deviations(device: torch.device, dtype: torch.dtype) -> list[float]:
    """Largest relative difference from torch in float32, of each kernel in each of its forms."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 3, 5, 160, generator=draw).to(device, dtype)
    weight = x[0, 0]
    normed, total = add_norm(x, y, weight, 1e-5)
    exact = x.float() + y.float()
    pairs = [(total, exact), (normed, functional.rms_norm(exact, (160,), weight.float(), 1e-5))]
    # Parts of one projection, and rows of their own.
    for gate, value in (x.split(80, -1), (x, y)):
        pairs.append((gated(gate, value), reference.swiglu(gate.float(), value.float())))
    return [relative_difference(*pair) for pair in pairs]
