"""Rotary position embedding as one Triton kernel, forward and backward."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalsuite.models.ops.tuning.candidates import FITTING_ROWS, row_configs


@triton.autotune(row_configs(), ["WIDTH", "HALF"], prune_configs_by=FITTING_ROWS)
@triton.jit
def _rotary_kernel(  # type: ignore[no-untyped-def]
    x, cos, sin, out, num_tokens, num_angles, sign,
    WIDTH: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    pair = tl.arange(0, BLOCK)
    mask = (row[:, None] < num_tokens) & (pair[None, :] < WIDTH // 2)
    first = row[:, None] * WIDTH + (pair // HALF * 2 * HALF + pair % HALF)[None, :]
    angle = (row % num_angles)[:, None] * (2 * HALF) + (pair % HALF)[None, :]
    c = tl.load(cos + angle, mask=mask, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=mask, other=0.0).to(tl.float32) * sign
    a = tl.load(x + first, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x + first + HALF, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + first, (a * c - b * s).to(out.dtype.element_ty), mask=mask)
    tl.store(out + first + HALF, (b * c + a * s).to(out.dtype.element_ty), mask=mask)


def _rotary_launch(x: Tensor, cos: Tensor, sin: Tensor, sign: float) -> Tensor:
    x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
    out = torch.empty_like(x)
    heads, head_dim = x.shape[-2:]
    num_tokens, width = x.numel() // (heads * head_dim), heads * head_dim
    _rotary_kernel[lambda meta: (triton.cdiv(num_tokens, meta["ROWS"]),)](
        x, cos, sin, out, num_tokens, cos.numel() // head_dim, sign,
        WIDTH=width, HALF=head_dim // 2, BLOCK=triton.next_power_of_2(width // 2),
    )  # fmt: skip
    return out


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotary_launch(x, cos, sin, 1.0)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        return _rotary_launch(d_out, cos, sin, -1.0), None, None


rotary = _Rotary.apply
