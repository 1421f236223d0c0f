"""Triton kernels of the mixers' training on CUDA: each reads and writes its tensors once.

Plain torch writes the rotary embedding and GLA's gates as chains of a dozen passes over all activations, and
fla's short convolution takes four times as long backward as its memory traffic asks for. Inference does not
come here: what an engine computes stays what torch computes.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 4
"""Tokens that a program of the rotary embedding holds at a time."""


@triton.jit
def _rotate(  # type: ignore[no-untyped-def]
    x, cosine, sine, out, tokens, angles, sign,
    WIDTH: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    pair = tl.arange(0, BLOCK)
    inside = (row[:, None] < tokens) & (pair[None, :] < WIDTH // 2)
    first = row[:, None] * WIDTH + (pair // HALF * 2 * HALF + pair % HALF)[None, :]
    angle = (row % angles)[:, None] * (2 * HALF) + (pair % HALF)[None, :]
    c = tl.load(cosine + angle, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sine + angle, mask=inside, other=0.0).to(tl.float32) * sign
    a = tl.load(x + first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + first + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + first, (a * c - b * s).to(out.dtype.element_ty), mask=inside)
    tl.store(out + first + HALF, (b * c + a * s).to(out.dtype.element_ty), mask=inside)


def _turn(x: Tensor, cosine: Tensor, sine: Tensor, sign: float) -> Tensor:
    x, cosine, sine = x.contiguous(), cosine.contiguous(), sine.contiguous()
    out = torch.empty_like(x)
    heads, size = x.shape[-2:]
    tokens, width = x.numel() // (heads * size), heads * size
    _rotate[(triton.cdiv(tokens, ROWS),)](
        x, cosine, sine, out, tokens, cosine.numel() // size, sign,
        WIDTH=width, HALF=size // 2, BLOCK=triton.next_power_of_2(width // 2), ROWS=ROWS, num_warps=4,
    )  # fmt: skip
    return out


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return _turn(x, cosine, sine, 1.0)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> Any:
        cosine, sine = ctx.saved_tensors
        return _turn(d_out, cosine, sine, -1.0), None, None


def rotary(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary position embedding in the half-split layout of Llama; x [B, T, H, D], angles [1 or B, T, D]."""
    turned: Tensor = _Rotary.apply(x, cosine, sine)
    return turned


TAPS = 4
"""The only number of taps that the convolution's backward pass is written for."""
STRIPS = 8
"""Stretches of time that a program walks along side by side."""
STRIP = 32
"""Tokens of a strip, a multiple of 4; a strip also reads its neighbours' nearest tokens."""
CHANNELS = 64
"""Channels of a program."""


@triton.jit
def _slope(a0, a1, a2, a3, w0, w1, w2, w3, d_y, SILU: tl.constexpr):  # type: ignore[no-untyped-def]
    """The gradient before the activation, of the token a0, which comes after a1, a2 and a3."""
    if SILU:
        y = a0 * w0 + a1 * w1 + a2 * w2 + a3 * w3
        s = tl.sigmoid(y)
        d_y *= s * (1 + y * (1 - s))
    return d_y


@triton.jit
def _convolution_backward(  # type: ignore[no-untyped-def]
    x, weight, d_y, d_x, partial, tokens, strips, length,
    WIDTH: tl.constexpr, SILU: tl.constexpr,
    STRIPS: tl.constexpr, STRIP: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """d_x_t = Σ_d w_d g_{t+d} and d_w_d = Σ_t g_t x_{t-d}, four tokens at a time, g being `_slope`."""
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = channel < WIDTH
    strip = tl.program_id(0).to(tl.int64) * STRIPS + tl.arange(0, STRIPS)
    # Places are counted over all rows of the batch; a strip lies in the row from `begin` to `end`.
    begin = strip // strips * length
    start = begin + strip % strips * STRIP
    end = tl.minimum(begin + length, tokens)
    w0 = tl.load(weight + channel * 4 + 3, mask=known, other=0.0).to(tl.float32)[None, :]
    w1 = tl.load(weight + channel * 4 + 2, mask=known, other=0.0).to(tl.float32)[None, :]
    w2 = tl.load(weight + channel * 4 + 1, mask=known, other=0.0).to(tl.float32)[None, :]
    w3 = tl.load(weight + channel * 4, mask=known, other=0.0).to(tl.float32)[None, :]
    at = start[:, None] * WIDTH + channel[None, :]
    open_ = known[None, :] & (start < end)[:, None]
    p1 = tl.load(x + at - WIDTH, mask=open_ & (start - 1 >= begin)[:, None], other=0.0).to(tl.float32)
    p2 = tl.load(x + at - 2 * WIDTH, mask=open_ & (start - 2 >= begin)[:, None], other=0.0).to(tl.float32)
    p3 = tl.load(x + at - 3 * WIDTH, mask=open_ & (start - 3 >= begin)[:, None], other=0.0).to(tl.float32)
    q1 = tl.zeros([STRIPS, CHANNELS], tl.float32)
    q2, q3 = q1, q1
    v0, v1, v2, v3 = q1, q1, q1, q1
    for step in range(0, STRIP + 4, 4):
        t = start + step
        m0 = known[None, :] & (t < end)[:, None]
        m1 = known[None, :] & (t + 1 < end)[:, None]
        m2 = known[None, :] & (t + 2 < end)[:, None]
        m3 = known[None, :] & (t + 3 < end)[:, None]
        a0 = tl.load(x + at, mask=m0, other=0.0).to(tl.float32)
        a1 = tl.load(x + at + WIDTH, mask=m1, other=0.0).to(tl.float32)
        a2 = tl.load(x + at + 2 * WIDTH, mask=m2, other=0.0).to(tl.float32)
        a3 = tl.load(x + at + 3 * WIDTH, mask=m3, other=0.0).to(tl.float32)
        g0 = tl.load(d_y + at, mask=m0, other=0.0).to(tl.float32)
        g1 = tl.load(d_y + at + WIDTH, mask=m1, other=0.0).to(tl.float32)
        g2 = tl.load(d_y + at + 2 * WIDTH, mask=m2, other=0.0).to(tl.float32)
        g3 = tl.load(d_y + at + 3 * WIDTH, mask=m3, other=0.0).to(tl.float32)
        g0 = _slope(a0, p1, p2, p3, w0, w1, w2, w3, g0, SILU)
        g1 = _slope(a1, a0, p1, p2, w0, w1, w2, w3, g1, SILU)
        g2 = _slope(a2, a1, a0, p1, w0, w1, w2, w3, g2, SILU)
        g3 = _slope(a3, a2, a1, a0, w0, w1, w2, w3, g3, SILU)
        # Three tokens back, whose followers are all known by now.
        e0 = q3 * w0 + q2 * w1 + q1 * w2 + g0 * w3
        e1 = q2 * w0 + q1 * w1 + g0 * w2 + g1 * w3
        e2 = q1 * w0 + g0 * w1 + g1 * w2 + g2 * w3
        e3 = g0 * w0 + g1 * w1 + g2 * w2 + g3 * w3
        back = step >= 4
        own = step < STRIP
        kind = d_x.dtype.element_ty
        tl.store(d_x + at - 3 * WIDTH, e0.to(kind), mask=known[None, :] & ((t - 3 < end) & back)[:, None])
        tl.store(d_x + at - 2 * WIDTH, e1.to(kind), mask=known[None, :] & ((t - 2 < end) & back)[:, None])
        tl.store(d_x + at - WIDTH, e2.to(kind), mask=known[None, :] & ((t - 1 < end) & back)[:, None])
        tl.store(d_x + at, e3.to(kind), mask=m0 & own)
        if own:
            v0 += g0 * a0 + g1 * a1 + g2 * a2 + g3 * a3
            v1 += g0 * p1 + g1 * a0 + g2 * a1 + g3 * a2
            v2 += g0 * p2 + g1 * p1 + g2 * a0 + g3 * a1
            v3 += g0 * p3 + g1 * p2 + g2 * p1 + g3 * a0
        p1, p2, p3 = a3, a2, a1
        q1, q2, q3 = g3, g2, g1
        at += 4 * WIDTH
    place = partial + tl.program_id(0) * WIDTH * 4 + channel * 4
    tl.store(place + 3, tl.sum(v0, 0), mask=known)
    tl.store(place + 2, tl.sum(v1, 0), mask=known)
    tl.store(place + 1, tl.sum(v2, 0), mask=known)
    tl.store(place, tl.sum(v3, 0), mask=known)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, silu: bool) -> Tensor:
        from fla.modules.causal_conv1d import causal_conv1d

        ctx.save_for_backward(x, weight)
        ctx.silu = silu
        y: Tensor = causal_conv1d(x, weight, activation="silu" if silu else None)[0]
        return y

    @staticmethod
    def backward(ctx: Any, d_y: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return *convolution_gradients(x, weight, d_y, silu=ctx.silu), None


def convolution_gradients(x: Tensor, weight: Tensor, d_y: Tensor, *, silu: bool) -> tuple[Tensor, Tensor]:
    """The gradients of `convolution` by x [B, T, C] and by weight [C, 4]."""
    x, weight, d_y = x.contiguous(), weight.contiguous(), d_y.contiguous()
    rows, length, width = x.shape
    strips = triton.cdiv(length, STRIP)
    programs = triton.cdiv(rows * strips, STRIPS)
    d_x = torch.empty_like(x)
    partial = torch.empty(programs, width, TAPS, dtype=torch.float32, device=x.device)
    _convolution_backward[(programs, triton.cdiv(width, CHANNELS))](
        x, weight, d_y, d_x, partial, rows * length, strips, length,
        WIDTH=width, SILU=silu, STRIPS=STRIPS, STRIP=STRIP, CHANNELS=CHANNELS, num_warps=4,
    )  # fmt: skip
    return d_x, partial.sum(0).to(weight.dtype)


def convolution(x: Tensor, weight: Tensor, *, silu: bool) -> Tensor:
    """The causal depthwise convolution of whole rows x [B, T, C] by weight [C, 4], the last tap on now."""
    y: Tensor = _Convolution.apply(x, weight, silu)
    return y


BLOCK = 1024
"""Numbers that a program of the gates holds at a time."""


@triton.jit
def _decay(z, inverse):  # type: ignore[no-untyped-def]
    """log α = logsigmoid(z) / τ and 1 − α², by their series where a difference would leave no digits."""
    e = tl.exp(-tl.abs(z))
    log_decay = inverse * (
        tl.minimum(z, 0.0) - tl.where(e < 0.01, e * (1 - e * (0.5 - e / 3)), tl.log(1 + e))
    )
    u = 2 * log_decay
    left = tl.where(u > -0.01, -u * (1 + u * (0.5 + u / 6)), 1 - tl.exp(u))
    return log_decay, tl.maximum(left, 1e-8)


@triton.jit
def _gates_forward(logits, k, log_decay, out, count, inverse, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    decay, left = _decay(tl.load(logits + place, mask=inside, other=0.0).to(tl.float32), inverse)
    key = tl.load(k + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(log_decay + place, decay, mask=inside)
    tl.store(out + place, (key * tl.sqrt(left)).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _gates_backward(  # type: ignore[no-untyped-def]
    logits, k, d_decay, d_out, d_logits, d_k, count, inverse, BLOCK: tl.constexpr
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    z = tl.load(logits + place, mask=inside, other=0.0).to(tl.float32)
    _, left = _decay(z, inverse)
    size = tl.sqrt(left)
    key = tl.load(k + place, mask=inside, other=0.0).to(tl.float32)
    given = tl.load(d_out + place, mask=inside, other=0.0).to(tl.float32)
    slope = tl.where(left > 1e-8, given * key * (left - 1) / size, 0.0)
    slope += tl.load(d_decay + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(d_k + place, (given * size).to(d_k.dtype.element_ty), mask=inside)
    d_z = slope * inverse * tl.sigmoid(-z)
    tl.store(d_logits + place, d_z.to(d_logits.dtype.element_ty), mask=inside)


class _Gates(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, k: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        logits, k = logits.contiguous(), k.contiguous()
        log_decay, out = torch.empty_like(logits, dtype=torch.float32), torch.empty_like(k)
        count = k.numel()
        _gates_forward[(triton.cdiv(count, BLOCK),)](
            logits, k, log_decay, out, count, 1 / temperature, BLOCK=BLOCK, num_warps=4
        )
        ctx.save_for_backward(logits, k)
        ctx.temperature = temperature
        return log_decay, out

    @staticmethod
    def backward(ctx: Any, d_decay: Tensor, d_out: Tensor) -> Any:
        logits, k = ctx.saved_tensors
        d_logits, d_k = torch.empty_like(logits), torch.empty_like(k)
        count = k.numel()
        _gates_backward[(triton.cdiv(count, BLOCK),)](
            logits, k, d_decay.contiguous(), d_out.contiguous(), d_logits, d_k, count, 1 / ctx.temperature,
            BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
        return d_logits, d_k, None


def gated_writes(logits: Tensor, k: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """log α = logsigmoid(logits) / temperature in float32, and √(1 − α²) k; logits and k [B, T, H, D]."""
    log_decay, scaled = _Gates.apply(logits, k, temperature)
    return log_decay, scaled
