"""Gated linear units, forward and backward, one kernel each.

fla's kernels divide every index by the width to support strided rows, which prevents wide loads: they reach
about half of the memory bandwidth that contiguous tensors permit.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from evalsuite.models.ops.glu import Activation
from evalsuite.models.ops.glu.activation import activate, derivative
from evalsuite.models.ops.tuning.candidates import block_configs


@triton.autotune(block_configs(), [])
@triton.jit(do_not_specialize=["count"])
def _glu_forward_kernel(  # type: ignore[no-untyped-def]
    gate, x, out, count, GELU: tl.constexpr, BLOCK: tl.constexpr
):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    g = tl.load(gate + index, mask=mask, other=0.0).to(tl.float32)
    value = tl.load(x + index, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + index, (activate(g, GELU) * value).to(out.dtype.element_ty), mask=mask)


@triton.autotune(block_configs(), ["HAS_OUT"])
@triton.jit
def _glu_backward_kernel(  # type: ignore[no-untyped-def]
    gate, x, d_out, d_gate, d_x, out, count,
    HAS_OUT: tl.constexpr, GELU: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    g = tl.load(gate + index, mask=mask, other=0.0).to(tl.float32)
    value = tl.load(x + index, mask=mask, other=0.0).to(tl.float32)
    d = tl.load(d_out + index, mask=mask, other=0.0).to(tl.float32)
    gated = activate(g, GELU)
    tl.store(d_gate + index, (d * derivative(g, GELU) * value).to(d_gate.dtype.element_ty), mask=mask)
    tl.store(d_x + index, (d * gated).to(d_x.dtype.element_ty), mask=mask)
    if HAS_OUT:
        tl.store(out + index, (gated * value).to(out.dtype.element_ty), mask=mask)


def _forward(gate: Tensor, x: Tensor, activation: Activation) -> Tensor:
    out = torch.empty_like(x)
    count = x.numel()
    _glu_forward_kernel[lambda meta: (triton.cdiv(count, meta["BLOCK"]),)](
        gate, x, out, count, GELU=activation == "gelu_tanh"
    )
    return out


def _backward(
    gate: Tensor, x: Tensor, d_out: Tensor, out: Tensor | None, activation: Activation
) -> tuple[Tensor, Tensor]:
    """Gradients of gate and x; `out`, if any, receives the output again."""
    d_gate, d_x = torch.empty_like(gate), torch.empty_like(x)
    count = x.numel()
    _glu_backward_kernel[lambda meta: (triton.cdiv(count, meta["BLOCK"]),)](
        gate, x, d_out, d_gate, d_x, d_x if out is None else out, count,
        HAS_OUT=out is not None, GELU=activation == "gelu_tanh",
    )  # fmt: skip
    return d_gate, d_x


class _GLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, x: Tensor, activation: Activation = "silu") -> Tensor:
        gate, x = gate.contiguous(), x.contiguous()
        ctx.save_for_backward(gate, x)
        ctx.activation = activation
        return _forward(gate, x, activation)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> Any:
        gate, x = ctx.saved_tensors
        return *_backward(gate, x, d_out.contiguous(), None, ctx.activation), None


class _GLULinear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        gate: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        activation: Activation = "silu",
    ) -> Tensor:
        gate, x = gate.contiguous(), x.contiguous()
        ctx.save_for_backward(gate, x, weight)
        ctx.activation = activation
        return functional.linear(_forward(gate, x, activation), weight, bias)

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> Any:
        gate, x, weight = ctx.saved_tensors
        d_y = d_y.reshape(-1, d_y.shape[-1])
        out = torch.empty_like(x) if ctx.needs_input_grad[2] else None
        d_gate, d_x = _backward(gate, x, (d_y @ weight).view_as(x), out, ctx.activation)
        d_weight = None if out is None else d_y.T @ out.view(-1, out.shape[-1])
        d_bias = d_y.sum(0) if ctx.needs_input_grad[3] else None
        return d_gate, d_x, d_weight, d_bias, None


glu = _GLU.apply
glu_linear = _GLULinear.apply
