"""Rotary position embedding without gradients, which rounds as separate operations do."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalsuite.models.ops.launch import keep_compiled
from evalsuite.models.ops.numerics import next_power_of_2

ELEMENTS = 2048
"""Elements of one program."""


@triton.jit
def rotated_halves(x, cos, sin, head, half, inside, x_head, width: tl.constexpr):  # type: ignore[no-untyped-def]
    """Both halves of rotated rows, each product and the sum rounded as by separate operations."""
    first = head[:, None] * x_head + half[None, :]
    a = tl.load(x + first, mask=inside, other=0.0)
    b = tl.load(x + first + width // 2, mask=inside, other=0.0)
    kind = a.dtype
    a32, b32 = a.to(tl.float32), b.to(tl.float32)
    here = half < width // 2
    c_a = tl.load(cos + half, mask=here, other=0.0).to(tl.float32)[None, :]
    c_b = tl.load(cos + half + width // 2, mask=here, other=0.0).to(tl.float32)[None, :]
    s_a = tl.load(sin + half, mask=here, other=0.0).to(tl.float32)[None, :]
    s_b = tl.load(sin + half + width // 2, mask=here, other=0.0).to(tl.float32)[None, :]
    low = (a32 * c_a).to(kind).to(tl.float32) + (-b32 * s_a).to(kind).to(tl.float32)
    high = (b32 * c_b).to(kind).to(tl.float32) + (a32 * s_b).to(kind).to(tl.float32)
    return low.to(kind), high.to(kind)


@keep_compiled
@triton.jit(do_not_specialize=["length"])
def _rotary_kernel(  # type: ignore[no-untyped-def]
    x, cos, sin, out, length, x_row, x_token, x_head, cos_row, cos_token, sin_row, sin_token,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, HEAD_BLOCK: tl.constexpr, HALF_BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    row, time = token // length, token % length
    head, half = tl.program_id(1) * HEAD_BLOCK + tl.arange(0, HEAD_BLOCK), tl.arange(0, HALF_BLOCK)
    inside = (head[:, None] < HEADS) & (half[None, :] < WIDTH // 2)
    x += row * x_row + time * x_token
    cos += row * cos_row + time * cos_token
    sin += row * sin_row + time * sin_token
    low, high = rotated_halves(x, cos, sin, head, half, inside, x_head, WIDTH)
    place = (token * HEADS + head[:, None]) * WIDTH + half[None, :]
    tl.store(out + place, low, mask=inside)
    tl.store(out + place + WIDTH // 2, high, mask=inside)


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rows, length, heads, width = x.shape
    x = x if x.stride(-1) == 1 else x.contiguous()
    cos, sin = (each.to(x.dtype).expand(rows, length, width) for each in (cos, sin))
    cos, sin = (each if each.stride(-1) == 1 else each.contiguous() for each in (cos, sin))
    half = next_power_of_2(width // 2)
    block = min(next_power_of_2(heads), max(1, ELEMENTS // half))
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _rotary_kernel[(rows * length, -(-heads // block))](
        x, cos, sin, out, length, *x.stride()[:3], *cos.stride()[:2], *sin.stride()[:2],
        HEADS=heads, WIDTH=width, HEAD_BLOCK=block, HALF_BLOCK=half, num_warps=4,
        enable_fp_fusion=False,  # See `attention.store`.
    )  # fmt: skip
    return out
