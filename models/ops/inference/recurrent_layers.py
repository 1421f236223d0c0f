"""Recurrent layers without gradients: norms of heads, rotary embedding, short convolutions, delta-rule gates.

A small model on a large GPU is bound by the number of kernels and by the host that starts them. Each of these
takes the place of three to twelve operations of torch or fla.
"""

import functools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from evalsuite.models.ops import reference
from evalsuite.models.ops.inference.decode_attention import rotated_halves
from evalsuite.models.ops.inference.launch import keep_compiled
from evalsuite.models.ops.inference.proof import proves_right, relative_difference
from evalsuite.models.ops.inference.rows import as_rows, as_states
from evalsuite.models.ops.recurrence.chunked import next_power_of_2

ELEMENTS = 2048
"""Elements of one program of a norm or of the rotary embedding."""
TOKENS = 32
"""Tokens of one program of a convolution."""
GATES = 1024
"""Gates of one program."""


@keep_compiled
@triton.jit(do_not_specialize=["rows0", "rows1"])
def _head_norm_kernel(  # type: ignore[no-untyped-def]
    x0, x1, weight, out0, out1, rows0, rows1, eps, gain,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, HAS_WEIGHT: tl.constexpr,
):  # fmt: skip
    x, out, rows = x0, out0, rows0
    if tl.program_id(1) == 1:
        x, out, rows = x1, out1, rows1
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    index = row[:, None] * WIDTH + column[None, :]
    mask = (row[:, None] < rows) & (column[None, :] < WIDTH)
    value = tl.load(x + index, mask=mask, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(value * value, 1) / WIDTH + eps)
    # Rounded before the gain, as in transformers.
    normed = (value * scale[:, None]).to(out.dtype.element_ty).to(tl.float32)
    if HAS_WEIGHT:
        normed *= tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)[None, :]
    else:
        normed *= gain
    tl.store(out + index, normed.to(out.dtype.element_ty), mask=mask)


def head_norm(x: Tensor, weight: Tensor | None, eps: float, gain: float = 1.0) -> Tensor:
    """RMSNorm over a narrow last axis, x / √(mean x² + eps) · weight.

    Args:
        x: [..., D], of a head.
        weight: [D]; None: `gain` instead.
        eps: added to the mean square.
        gain: factor if there is no weight.
    """
    return head_norms([x], weight, eps, gain)[0]


def head_norms(parts: Sequence[Tensor], weight: Tensor | None, eps: float, gain: float = 1.0) -> list[Tensor]:
    """`head_norm` of one or two tensors [..., D] in one launch, with the same weight."""
    parts = [x.contiguous() for x in parts]
    first, last = parts[0], parts[-1]
    width = first.shape[-1]
    block = next_power_of_2(width)
    rows = max(1, ELEMENTS // block)
    counts = [x.numel() // width for x in parts]
    outs = [torch.empty_like(x) for x in parts]
    _head_norm_kernel[(-(-max(counts) // rows), len(parts))](
        first, last, first if weight is None else weight, outs[0], outs[-1], counts[0], counts[-1], eps, gain,
        WIDTH=width, BLOCK=block, ROWS=rows, HAS_WEIGHT=weight is not None, num_warps=4,
    )  # fmt: skip
    return outs


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
    """Rotary position embedding in Llama's half-split layout; rounds as `reference.rotary`, to the bit.

    Args:
        x: [B, T, H, D], with any strides but a contiguous last axis; other tensors are copied.
        cos, sin: [1 or B, T, D], the same.

    Returns:
        [B, T, H, D], contiguous.
    """
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
        enable_fp_fusion=False,  # See `decode_attention.rotate_and_store`.
    )  # fmt: skip
    return out


@keep_compiled
@triton.jit(do_not_specialize=["length", "tiles", "activated"])
def _short_conv_kernel(  # type: ignore[no-untyped-def]
    x0, x1, x2, weight0, weight1, weight2, out0, out1, out2, mask, slots, state, after,
    length, tiles, activated, token0, token1, token2, state_row,
    CHANNELS0: tl.constexpr, CHANNELS1: tl.constexpr, CHANNELS2: tl.constexpr,
    BLOCK: tl.constexpr, TAPS: tl.constexpr, TILE: tl.constexpr,
    HAS_STATE: tl.constexpr, HAS_SLOTS: tl.constexpr, IN_PLACE: tl.constexpr,
    HAS_MASK: tl.constexpr, MASK_BLOCK: tl.constexpr,
):  # fmt: skip
    row, tile = tl.program_id(0).to(tl.int64) // tiles, tl.program_id(0) % tiles
    block = tl.program_id(1)
    activates = block < activated
    BLOCKS0: tl.constexpr = (CHANNELS0 + BLOCK - 1) // BLOCK
    BLOCKS1: tl.constexpr = (CHANNELS1 + BLOCK - 1) // BLOCK
    # Tokens of a part of a joined projection lie further apart than its channels are many.
    x, weight, out, token = x0, weight0, out0, token0
    channels, before = CHANNELS0, 0
    if block >= BLOCKS0 + BLOCKS1:
        x, weight, out, token = x2, weight2, out2, token2
        channels, before = CHANNELS2, CHANNELS0 + CHANNELS1
        block -= BLOCKS0 + BLOCKS1
    elif block >= BLOCKS0:
        x, weight, out, token = x1, weight1, out1, token1
        channels, before = CHANNELS1, CHANNELS0
        block -= BLOCKS0
    channel = block * BLOCK + tl.arange(0, BLOCK)
    known = channel < channels
    time = tile * TILE + tl.arange(0, TILE)
    x += row * length * token
    mask += row * length
    # The channels of all parts share a state.
    owner = row
    if HAS_SLOTS:
        owner = tl.load(slots + row)
    first = owner * state_row + before * (TAPS - 1)
    state += first
    if not IN_PLACE:
        first = (row * (CHANNELS0 + CHANNELS1 + CHANNELS2) + before) * (TAPS - 1)
    after += first
    total = tl.zeros([TILE, BLOCK], tl.float32)
    for lag in tl.static_range(TAPS):
        at = time - lag
        inside = (at >= 0) & (at < length)
        if HAS_MASK:
            inside = inside & (tl.load(mask + at, mask=inside, other=0) != 0)
        here = inside[:, None] & known[None, :]
        value = tl.load(x + at[:, None] * token + channel[None, :], mask=here, other=0.0).to(tl.float32)
        if HAS_STATE:
            past = (at[:, None] < 0) & known[None, :]
            where = channel[None, :] * (TAPS - 1) + TAPS - 1 + at[:, None]
            value += tl.load(state + where, mask=past, other=0.0).to(tl.float32)
        w = tl.load(weight + channel * TAPS + (TAPS - 1 - lag), mask=known, other=0.0).to(tl.float32)
        total += value * w[None, :]
    if activates:
        total *= tl.sigmoid(total)
    place = (row * length + time)[:, None] * channels + channel[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=(time < length)[:, None] & known[None, :])
    if IN_PLACE:
        # Other threads read the state for the token that this program convolves.
        tl.debug_barrier()
    if tile == 0:
        end = length
        if HAS_MASK:
            # Place after the last real token; 0 for a row without any.
            last = tl.zeros([MASK_BLOCK], tl.int32)
            for start in range(0, length, MASK_BLOCK):
                near = start + tl.arange(0, MASK_BLOCK)
                real = tl.load(mask + near, mask=near < length, other=0) != 0
                last = tl.maximum(last, tl.where(real, near + 1, 0))
            end = tl.max(last, 0)
        for tap in tl.static_range(TAPS - 1):
            source = end - (TAPS - 1) + tap + tl.zeros([BLOCK], tl.int32)
            exists = known & (source >= 0)
            if HAS_MASK:
                exists = exists & (tl.load(mask + source, mask=exists, other=0) != 0)
            kept = tl.load(x + source * token + channel, mask=exists, other=0.0)
            if HAS_STATE:
                carried = channel * (TAPS - 1) + TAPS - 1 + source
                kept += tl.load(state + carried, mask=known & (source < 0), other=0.0).to(kept.dtype)
            tl.store(after + channel * (TAPS - 1) + tap, kept, mask=known)


def short_conv_step(
    parts: Sequence[Tensor],
    weights: Sequence[Tensor],
    token_mask: Tensor | None,
    state: Tensor | None,
    after: Tensor,
    *,
    slots: Tensor | None = None,
    num_activated: int,
) -> list[Tensor]:
    """Causal depthwise convolutions of rows that may continue others, and what the next tokens need of them.

    Args:
        parts: one to three tensors [B, T, Cᵢ], convolved together; tokens may lie apart by one stride.
        weights: [Cᵢ, kernel_size], or [Cᵢ, 1, kernel_size] as in torch; the last column applies to the
            current token.
        token_mask: bool [B, T], real tokens, contiguous in each row; None: all. Not together with a state.
        state: the kernel_size − 1 inputs before the parts, [B, ΣCᵢ, kernel_size − 1]; None: zeros.
        after: the same after them, contiguous; written. For one token it may be `state`.
        slots: int64 [B], index of each row's state in `state`, whose states may lie apart; rows that share a
            slot race if `after` is `state`. None: state i is that of row i.
        num_activated: number of parts, the first ones, to which SiLU is applied.

    Returns:
        [B, T, Cᵢ] for each part.
    """
    rows, length = parts[0].shape[:2]
    parts, distances = zip(*map(as_rows, parts), strict=True)
    weights = [weight.contiguous() for weight in weights]
    tile = min(TOKENS, next_power_of_2(length))
    tiles, block = -(-length // tile), 64
    mask = parts[0] if token_mask is None else token_mask.contiguous().view(torch.uint8)
    before = after if state is None else as_states(state, slots is not None, state is after)
    outs = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in parts]
    missing = 3 - len(parts)
    channels = [x.shape[2] for x in parts] + [0] * missing
    blocks = [-(-each // block) for each in channels]
    _short_conv_kernel[(rows * tiles, sum(blocks))](
        *(each for group in (parts, weights, outs) for each in (*group, *group[:1] * missing)),
        mask, mask if slots is None else slots.contiguous(), before, after,
        length, tiles, sum(blocks[:num_activated]), *distances, *[0] * missing, before.stride(0),
        CHANNELS0=channels[0], CHANNELS1=channels[1], CHANNELS2=channels[2],
        BLOCK=block, TAPS=weights[0].shape[-1], TILE=tile,
        HAS_STATE=state is not None, HAS_SLOTS=slots is not None,
        IN_PLACE=state is not None and before.data_ptr() == after.data_ptr(),
        HAS_MASK=token_mask is not None, MASK_BLOCK=256, num_warps=4,
    )  # fmt: skip
    return outs


@keep_compiled
@triton.jit(do_not_specialize=["count"])
def _delta_gates_kernel(  # type: ignore[no-untyped-def]
    a, b, bias, rate, log_decay, beta, count, a_row, b_row, most, HEADS: tl.constexpr, BLOCK: tl.constexpr
):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = index < count
    row, head = index // HEADS, index % HEADS
    logit = tl.load(a + row * a_row + head, mask=mask, other=0.0).to(tl.float32)
    logit += tl.load(bias + head, mask=mask, other=0.0).to(tl.float32)
    # softplus(x) = max(x, 0) + log(1 + e^−|x|); the quotient undoes the rounding of the logarithm's argument.
    small = tl.exp(-tl.abs(logit))
    one = 1 + small
    log1p = tl.where(one == 1, small, tl.log(one) * (small / tl.where(one == 1, 1.0, one - 1)))
    softplus = tl.maximum(logit, 0.0) + log1p
    speed = tl.exp(tl.load(rate + head, mask=mask, other=0.0).to(tl.float32))
    tl.store(log_decay + index, -speed * softplus, mask=mask)
    strength = tl.sigmoid(tl.load(b + row * b_row + head, mask=mask, other=0.0).to(tl.float32))
    tl.store(beta + index, most * strength, mask=mask)


def delta_gates(a: Tensor, b: Tensor, bias: Tensor, rate: Tensor, most: float) -> tuple[Tensor, Tensor]:
    """Gates of Gated DeltaNet: log α = −exp(rate) · softplus(a + bias) and β = most · sigmoid(b).

    Args:
        a, b: logits [B, T, H], whose rows may lie apart.
        bias, rate: [H].
        most: the largest β.

    Returns:
        Two tensors [B, T, H] in float32.
    """
    (a, a_row), (b, b_row) = as_rows(a), as_rows(b)
    count = a.numel()
    log_decay, beta = (
        torch.empty_like(each, dtype=torch.float32, memory_format=torch.contiguous_format) for each in (a, b)
    )
    _delta_gates_kernel[(-(-count // GATES),)](
        a, b, bias, rate, log_decay, beta, count, a_row, b_row, most, HEADS=a.shape[-1], BLOCK=GATES
    )
    return log_decay, beta


def applies(x: Tensor) -> bool:
    """Whether these kernels prove right on the device and in the dtype of `x`."""
    return _proven(x.device, x.dtype)


@functools.cache
def _proven(device: torch.device, dtype: torch.dtype) -> bool:
    return proves_right(lambda: _deviations(device, dtype), dtype, "recurrent layers use separate operations")


def _deviations(device: torch.device, dtype: torch.dtype) -> list[float]:
    """Largest relative difference from torch in float32, of each kernel in each of its forms."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 80, generator=draw).to(device, dtype)
    weight, before = x[0, 0], torch.randn(2, 80, 3, generator=draw).to(device, dtype)
    taps = torch.randn(80, 4, generator=draw).to(device, dtype)
    norm = functional.rms_norm(x.float(), (80,), eps=1e-6)
    pairs = [(head_norm(x, weight, 1e-6), norm * weight.float())]
    halves = head_norms([x, x[:, :1]], None, 1e-6, 0.5)
    pairs += [(halves[0], norm * 0.5), (halves[1], norm[:, :1] * 0.5)]
    mask = torch.tensor([[True, True, True], [True, False, False]], device=device)
    for inputs, real, state in (
        (x, None, before),
        (x[:, :1], None, before),
        (x, mask, None),
        (x, None, None),
    ):
        after = torch.empty_like(before)
        # Three parts, of which two are activated.
        widths = (48, 16, 16)
        parts = inputs.split(widths, -1), taps.split(widths)
        y = torch.cat(short_conv_step(*parts, real, state, after, num_activated=2), -1)
        clean = inputs if real is None else inputs * real[..., None]
        start = torch.zeros_like(before) if state is None else state
        history = torch.cat([start.transpose(1, 2), clean], 1).float()
        windows = history.unfold(1, 4, 1)
        ends = [3 + len(inputs[0])] * 2 if real is None else [6, 4]
        kept = torch.stack([row[end - 3 : end].T for row, end in zip(history, ends, strict=True)])
        plain = (windows * taps.float()).sum(-1)
        active = torch.arange(80, device=device) < 64
        pairs += [(y, torch.where(active, functional.silu(plain), plain)), (after, kept)]
    a, b, bias, rate = x[..., :9], x[..., 9:18], weight[16:25], weight[:9]
    decay = -rate.float().exp() * functional.softplus(a.float() + bias.float())
    pairs += zip(delta_gates(a, b, bias, rate, 2.0), (decay, 2 * b.float().sigmoid()), strict=True)
    # Rows of positions of their own or of the same, of one token or of several.
    q, (cos, sin) = x.unflatten(-1, (5, 16)), torch.randn(2, 2, 3, 16, generator=draw).to(device, dtype)
    for count, angles in ((3, 2), (1, 2), (3, 1)):
        part = q[:, :count], cos[:angles, :count], sin[:angles, :count]
        pairs.append((rotary(*part), reference.rotary(*(each.float() for each in part))))
    return [relative_difference(*pair) for pair in pairs]
