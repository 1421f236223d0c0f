"""Short convolutions without gradients: all parts, and the states, in one kernel."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalsuite.models.ops.launch import keep_compiled
from evalsuite.models.ops.numerics import as_rows, as_states, next_power_of_2
from evalsuite.models.ops.recurrence import OWN, StateAccess

TOKENS = 32
"""Tokens of one program."""


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


def short_convolutions(
    parts: Sequence[Tensor],
    weights: Sequence[Tensor],
    num_activated: int,
    state: Tensor | None = None,
    token_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    access: StateAccess = OWN,
) -> tuple[Sequence[Tensor], Tensor]:
    rows, length = parts[0].shape[:2]
    slots = None if state is None else access.slots
    own = access.in_place and state is not None and state.is_contiguous() and state.dtype == parts[0].dtype
    if state is not None and length == 1 and not access.discards and (slots is not None or own):
        after = state
    else:
        after = parts[0].new_empty(rows, sum(map(len, weights)), weights[0].shape[-1] - 1)
    parts, distances = zip(*map(as_rows, parts), strict=True)
    weights = [weight.to(parts[0].dtype).contiguous() for weight in weights]
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
    return outs, after
