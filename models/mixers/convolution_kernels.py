"""The short causal convolution of whole rows with its SiLU, forward and backward, as Triton kernels.

Each pass reads its tensors once from memory. Imported by `convolution` when it meets CUDA tensors.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKENS, CHANNELS = 64, 64
"""Tokens and channels that a program holds."""


@triton.jit
def _mixed(  # type: ignore[no-untyped-def]
    x, weight, row, token, channel, inside, LENGTH, WIDTH,
    TAPS: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Σ_d w_d x_{t-d} of a tile, float32."""
    total = tl.zeros([TOKENS, CHANNELS], tl.float32)
    for lag in tl.static_range(TAPS):
        earlier = token - lag
        tap = tl.load(weight + channel * TAPS + (TAPS - 1 - lag), mask=channel < WIDTH, other=0.0)
        value = tl.load(
            x + (row * LENGTH + earlier)[:, None] * WIDTH + channel[None, :],
            mask=inside & (earlier >= 0)[:, None],
            other=0.0,
        )
        total += value.to(tl.float32) * tap.to(tl.float32)[None, :]
    return total


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    x, weight, out, LENGTH, WIDTH,
    TAPS: tl.constexpr, SILU: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(2).to(tl.int64)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = (token < LENGTH)[:, None] & (channel < WIDTH)[None, :]
    total = _mixed(x, weight, row, token, channel, inside, LENGTH, WIDTH, TAPS, TOKENS, CHANNELS)
    if SILU:
        total = total * tl.sigmoid(total)
    place = (row * LENGTH + token)[:, None] * WIDTH + channel[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward_taps(  # type: ignore[no-untyped-def]
    x, weight, d_out, d_mixed, partial, LENGTH, WIDTH,
    TAPS: tl.constexpr, SILU: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Through the SiLU to d_mixed, and this tile's part of the gradient of the taps."""
    row = tl.program_id(2).to(tl.int64)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = (token < LENGTH)[:, None] & (channel < WIDTH)[None, :]
    place = (row * LENGTH + token)[:, None] * WIDTH + channel[None, :]
    gradient = tl.load(d_out + place, mask=inside, other=0.0).to(tl.float32)
    if SILU:
        mixed = _mixed(x, weight, row, token, channel, inside, LENGTH, WIDTH, TAPS, TOKENS, CHANNELS)
        gate = tl.sigmoid(mixed)
        gradient *= gate * (1 + mixed * (1 - gate))
        tl.store(d_mixed + place, gradient.to(d_mixed.dtype.element_ty), mask=inside)
    part = partial + (row * tl.num_programs(1) + tl.program_id(1)) * WIDTH * TAPS
    for lag in tl.static_range(TAPS):
        earlier = token - lag
        value = tl.load(
            x + (row * LENGTH + earlier)[:, None] * WIDTH + channel[None, :],
            mask=inside & (earlier >= 0)[:, None],
            other=0.0,
        )
        total = tl.sum(gradient * value.to(tl.float32), 0)
        tl.store(part + channel * TAPS + (TAPS - 1 - lag), total, mask=channel < WIDTH)


@triton.jit
def _backward_input(  # type: ignore[no-untyped-def]
    weight, d_mixed, d_x, LENGTH, WIDTH,
    TAPS: tl.constexpr, TOKENS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(2).to(tl.int64)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.program_id(0) * CHANNELS + tl.arange(0, CHANNELS)
    inside = (token < LENGTH)[:, None] & (channel < WIDTH)[None, :]
    total = tl.zeros([TOKENS, CHANNELS], tl.float32)
    for lag in tl.static_range(TAPS):
        later = token + lag
        tap = tl.load(weight + channel * TAPS + (TAPS - 1 - lag), mask=channel < WIDTH, other=0.0)
        value = tl.load(
            d_mixed + (row * LENGTH + later)[:, None] * WIDTH + channel[None, :],
            mask=inside & (later < LENGTH)[:, None],
            other=0.0,
        )
        total += value.to(tl.float32) * tap.to(tl.float32)[None, :]
    place = (row * LENGTH + token)[:, None] * WIDTH + channel[None, :]
    tl.store(d_x + place, total.to(d_x.dtype.element_ty), mask=inside)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, silu: bool) -> Tensor:
        x, weight = x.contiguous(), weight.contiguous()
        rows, length, width = x.shape
        out = torch.empty_like(x)
        grid = (triton.cdiv(width, CHANNELS), triton.cdiv(length, TOKENS), rows)
        sizes = {"TAPS": weight.shape[1], "TOKENS": TOKENS, "CHANNELS": CHANNELS}
        _forward[grid](x, weight, out, length, width, SILU=silu, **sizes)
        ctx.save_for_backward(x, weight)
        ctx.silu, ctx.grid, ctx.sizes = silu, grid, sizes
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        rows, length, width = x.shape
        d_out = d_out.contiguous()
        d_mixed = torch.empty_like(x) if ctx.silu else d_out
        partial = torch.empty(rows * ctx.grid[1], *weight.shape, dtype=torch.float32, device=x.device)
        _backward_taps[ctx.grid](
            x, weight, d_out, d_mixed, partial, length, width, SILU=ctx.silu, **ctx.sizes
        )
        d_x = torch.empty_like(x)
        _backward_input[ctx.grid](weight, d_mixed, d_x, length, width, **ctx.sizes)
        return d_x, partial.sum(0).to(weight.dtype), None


def causal_convolution(x: Tensor, weight: Tensor, *, silu: bool) -> Tensor:
    """y_t = Σ_d w_d x_{t-d} per channel, then SiLU if asked; x [B, T, C], weight [C, taps]."""
    out: Tensor = _Convolution.apply(x, weight, silu)
    return out
