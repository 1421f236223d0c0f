"""Gated linear units without gradients, of parts of a joined projection, whose rows lie apart."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalsuite.models.ops.glu import Activation
from evalsuite.models.ops.glu.activation import activate
from evalsuite.models.ops.launch import keep_compiled
from evalsuite.models.ops.numerics import as_rows, next_power_of_2

ELEMENTS = 2048
"""Elements of one program."""
MAX_BLOCK = 256
"""Most adjacent channels of one program."""


@keep_compiled
@triton.jit(do_not_specialize=["rows"])
def _gated_kernel(  # type: ignore[no-untyped-def]
    gate, x, out, rows, gate_row, x_row,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, GELU: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = (row[:, None] < rows) & (column[None, :] < WIDTH)
    g = tl.load(gate + row[:, None] * gate_row + column[None, :], mask=mask, other=0.0).to(tl.float32)
    value = tl.load(x + row[:, None] * x_row + column[None, :], mask=mask, other=0.0).to(tl.float32)
    value *= activate(g, GELU)
    tl.store(out + row[:, None] * WIDTH + column[None, :], value.to(out.dtype.element_ty), mask=mask)


def glu(gate: Tensor, x: Tensor, activation: Activation = "silu") -> Tensor:
    (gate, gate_row), (x, x_row) = as_rows(gate), as_rows(x)
    width = x.shape[-1]
    # The largest power of two that divides the width, if it is not tiny.
    divisor = width & -width
    block = min(MAX_BLOCK, divisor if divisor >= 16 else next_power_of_2(width))
    rows, count = max(1, ELEMENTS // block), x.numel() // width
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _gated_kernel[(-(-count // rows), -(-width // block))](
        gate, x, out, count, gate_row, x_row,
        WIDTH=width, BLOCK=block, ROWS=rows, GELU=activation == "gelu_tanh", num_warps=4,
    )  # fmt: skip
    return out
