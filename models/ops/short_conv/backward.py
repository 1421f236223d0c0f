"""Short convolution on fla's forward kernel, with a faster backward pass.

fla's backward pass takes about four times as long as its memory traffic requires.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

KERNEL_SIZE = 4
"""Kernel size; the backward pass is unrolled for it."""
NUM_TILES = 8
"""Tiles of tokens that one program processes in parallel."""
TILE = 32
"""Tokens per tile, a multiple of 4; a tile also reads the nearest tokens of the adjacent tiles."""
CHANNELS = 64
"""Channels per program."""


@triton.jit
def _silu_grad(a0, a1, a2, a3, w0, w1, w2, w3, d_y, SILU: tl.constexpr):  # type: ignore[no-untyped-def]
    """Gradient before the activation for the token with input a0, whose predecessors are a1, a2 and a3."""
    if SILU:
        y = a0 * w0 + a1 * w1 + a2 * w2 + a3 * w3
        s = tl.sigmoid(y)
        d_y *= s * (1 + y * (1 - s))
    return d_y


@triton.jit
def _short_conv_backward_kernel(  # type: ignore[no-untyped-def]
    x, weight, d_y, d_x, partial, tokens, tiles_per_row, length,
    WIDTH: tl.constexpr, SILU: tl.constexpr,
    NUM_TILES: tl.constexpr, TILE: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """d_x_t = Σ_d w_d g_{t+d} and d_w_d = Σ_t g_t x_{t-d} with g from `_silu_grad`, four tokens at a time."""
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    in_width = channel < WIDTH
    tile = tl.program_id(0).to(tl.int64) * NUM_TILES + tl.arange(0, NUM_TILES)
    # Tokens are counted over all rows of the batch; a tile lies in the row from `begin` to `end`.
    begin = tile // tiles_per_row * length
    start = begin + tile % tiles_per_row * TILE
    end = tl.minimum(begin + length, tokens)
    w0 = tl.load(weight + channel * 4 + 3, mask=in_width, other=0.0).to(tl.float32)[None, :]
    w1 = tl.load(weight + channel * 4 + 2, mask=in_width, other=0.0).to(tl.float32)[None, :]
    w2 = tl.load(weight + channel * 4 + 1, mask=in_width, other=0.0).to(tl.float32)[None, :]
    w3 = tl.load(weight + channel * 4, mask=in_width, other=0.0).to(tl.float32)[None, :]
    at = start[:, None] * WIDTH + channel[None, :]
    in_row = in_width[None, :] & (start < end)[:, None]
    p1 = tl.load(x + at - WIDTH, mask=in_row & (start - 1 >= begin)[:, None], other=0.0).to(tl.float32)
    p2 = tl.load(x + at - 2 * WIDTH, mask=in_row & (start - 2 >= begin)[:, None], other=0.0).to(tl.float32)
    p3 = tl.load(x + at - 3 * WIDTH, mask=in_row & (start - 3 >= begin)[:, None], other=0.0).to(tl.float32)
    q1 = tl.zeros([NUM_TILES, CHANNELS], tl.float32)
    q2, q3 = q1, q1
    v0, v1, v2, v3 = q1, q1, q1, q1
    for step in range(0, TILE + 4, 4):
        t = start + step
        m0 = in_width[None, :] & (t < end)[:, None]
        m1 = in_width[None, :] & (t + 1 < end)[:, None]
        m2 = in_width[None, :] & (t + 2 < end)[:, None]
        m3 = in_width[None, :] & (t + 3 < end)[:, None]
        a0 = tl.load(x + at, mask=m0, other=0.0).to(tl.float32)
        a1 = tl.load(x + at + WIDTH, mask=m1, other=0.0).to(tl.float32)
        a2 = tl.load(x + at + 2 * WIDTH, mask=m2, other=0.0).to(tl.float32)
        a3 = tl.load(x + at + 3 * WIDTH, mask=m3, other=0.0).to(tl.float32)
        g0 = tl.load(d_y + at, mask=m0, other=0.0).to(tl.float32)
        g1 = tl.load(d_y + at + WIDTH, mask=m1, other=0.0).to(tl.float32)
        g2 = tl.load(d_y + at + 2 * WIDTH, mask=m2, other=0.0).to(tl.float32)
        g3 = tl.load(d_y + at + 3 * WIDTH, mask=m3, other=0.0).to(tl.float32)
        g0 = _silu_grad(a0, p1, p2, p3, w0, w1, w2, w3, g0, SILU)
        g1 = _silu_grad(a1, a0, p1, p2, w0, w1, w2, w3, g1, SILU)
        g2 = _silu_grad(a2, a1, a0, p1, w0, w1, w2, w3, g2, SILU)
        g3 = _silu_grad(a3, a2, a1, a0, w0, w1, w2, w3, g3, SILU)
        # The three previous tokens, whose successors have all been read.
        e0 = q3 * w0 + q2 * w1 + q1 * w2 + g0 * w3
        e1 = q2 * w0 + q1 * w1 + g0 * w2 + g1 * w3
        e2 = q1 * w0 + g0 * w1 + g1 * w2 + g2 * w3
        e3 = g0 * w0 + g1 * w1 + g2 * w2 + g3 * w3
        back = step >= 4
        own = step < TILE
        kind = d_x.dtype.element_ty
        tl.store(d_x + at - 3 * WIDTH, e0.to(kind), mask=in_width[None, :] & ((t - 3 < end) & back)[:, None])
        tl.store(d_x + at - 2 * WIDTH, e1.to(kind), mask=in_width[None, :] & ((t - 2 < end) & back)[:, None])
        tl.store(d_x + at - WIDTH, e2.to(kind), mask=in_width[None, :] & ((t - 1 < end) & back)[:, None])
        tl.store(d_x + at, e3.to(kind), mask=m0 & own)
        if own:
            v0 += g0 * a0 + g1 * a1 + g2 * a2 + g3 * a3
            v1 += g0 * p1 + g1 * a0 + g2 * a1 + g3 * a2
            v2 += g0 * p2 + g1 * p1 + g2 * a0 + g3 * a1
            v3 += g0 * p3 + g1 * p2 + g2 * p1 + g3 * a0
        p1, p2, p3 = a3, a2, a1
        q1, q2, q3 = g3, g2, g1
        at += 4 * WIDTH
    index = partial + tl.program_id(0) * WIDTH * 4 + channel * 4
    tl.store(index + 3, tl.sum(v0, 0), mask=in_width)
    tl.store(index + 2, tl.sum(v1, 0), mask=in_width)
    tl.store(index + 1, tl.sum(v2, 0), mask=in_width)
    tl.store(index, tl.sum(v3, 0), mask=in_width)


class ShortConv(torch.autograd.Function):
    """y of full rows x [B, T, C] by weight [C, 4], with or without SiLU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, silu: bool) -> Tensor:
        from fla.modules.causal_conv1d import causal_conv1d

        ctx.save_for_backward(x, weight)
        ctx.silu = silu
        return causal_conv1d(x, weight, activation="silu" if silu else None)[0]

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return *short_conv_backward(x, weight, d_y, silu=ctx.silu), None


def short_conv_backward(x: Tensor, weight: Tensor, d_y: Tensor, *, silu: bool) -> tuple[Tensor, Tensor]:
    """Compute the gradients of `short_conv` with respect to x [B, T, C] and weight [C, 4]."""
    x, weight, d_y = x.contiguous(), weight.contiguous(), d_y.contiguous()
    rows, length, width = x.shape
    tiles_per_row = triton.cdiv(length, TILE)
    programs = triton.cdiv(rows * tiles_per_row, NUM_TILES)
    d_x = torch.empty_like(x)
    partial = torch.empty(programs, width, KERNEL_SIZE, dtype=torch.float32, device=x.device)
    _short_conv_backward_kernel[(programs, triton.cdiv(width, CHANNELS))](
        x, weight, d_y, d_x, partial, rows * length, tiles_per_row, length,
        WIDTH=width, SILU=silu, NUM_TILES=NUM_TILES, TILE=TILE, CHANNELS=CHANNELS, num_warps=4,
    )  # fmt: skip
    return d_x, partial.sum(0).to(weight.dtype)
