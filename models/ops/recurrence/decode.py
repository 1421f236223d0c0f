"""The recurrence token by token, for steps of generation and short rows, with every decay and write rule.

A step reads and writes the whole state and computes next to nothing, so that its time is that of the memory:
the final state can take the place of the initial one, which saves a cache from copying it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from evalsuite.models.ops.launch import keep_compiled
from evalsuite.models.ops.numerics import as_states, next_power_of_2
from evalsuite.models.ops.recurrence.inputs import RecurrenceInputs

VALUES = 32
"""Channels of the values of one program."""
ELEMENTS_PER_WARP = 2048
"""Elements of the state in the registers of a warp, 64 a thread."""


@keep_compiled
@triton.jit(do_not_specialize=["length", "heads"])
def _recurrent_kernel(  # type: ignore[no-untyped-def]
    q, k, v, log_decay, beta, along, mask, slots, initial, final, out, length, heads, state_row, scale,
    KEY_WIDTH: tl.constexpr, KEY_BLOCK: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    DECAY: tl.constexpr, RULE: tl.constexpr, HAS_ALONG: tl.constexpr, HAS_STATE: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_SLOTS: tl.constexpr, STORES: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    row, head = pair // heads, pair % heads
    i, j = tl.arange(0, KEY_BLOCK), tl.program_id(1) * VALUE_BLOCK + tl.arange(0, VALUE_BLOCK)
    known, wanted = i < KEY_WIDTH, j < VALUE_WIDTH
    inside = known[:, None] & wanted[None, :]
    owner = row
    if HAS_SLOTS:
        owner = tl.load(slots + row)
    place = owner * state_row + head * (KEY_WIDTH * VALUE_WIDTH) + i[:, None] * VALUE_WIDTH + j[None, :]
    if HAS_STATE:
        state = tl.load(initial + place, mask=inside, other=0.0).to(tl.float32)
    else:
        state = tl.zeros([KEY_BLOCK, VALUE_BLOCK], tl.float32)
    first = row * length * heads + head
    q += first * KEY_WIDTH
    k += first * KEY_WIDTH
    v += first * VALUE_WIDTH
    out += first * VALUE_WIDTH
    # The generalized delta rule has a in the place of β.
    if RULE == "generalized delta rule":
        beta += first * KEY_WIDTH
        along += first * KEY_WIDTH
    else:
        beta += first
    if DECAY == "channel":
        log_decay += first * KEY_WIDTH
    elif DECAY == "scalar":
        log_decay += first
    else:
        log_decay += head
    mask += row * length
    for token in range(length):
        mixed = tl.zeros([VALUE_BLOCK], tl.float32)
        real = True
        if HAS_MASK:
            real = tl.load(mask + token) != 0
        # Padding neither decays nor writes, and gets zeros.
        if real:
            query = tl.load(q + i, mask=known, other=0.0).to(tl.float32) * scale
            key = tl.load(k + i, mask=known, other=0.0).to(tl.float32)
            value = tl.load(v + j, mask=wanted, other=0.0).to(tl.float32)
            if RULE == "generalized delta rule":
                read = tl.load(beta + i, mask=known, other=0.0).to(tl.float32)
                removed = tl.sum(state * read[:, None], 0)
                if not HAS_ALONG:
                    value -= removed
            if DECAY == "channel":
                state *= tl.exp(tl.load(log_decay + i, mask=known, other=0.0).to(tl.float32))[:, None]
            elif DECAY != "none":
                state *= tl.exp(tl.load(log_decay).to(tl.float32))
            if HAS_ALONG:
                direction = tl.load(along + i, mask=known, other=0.0).to(tl.float32)
                state -= direction[:, None] * removed[None, :]
            if RULE == "delta rule":
                value -= tl.sum(state * key[:, None], 0)
                value *= tl.load(beta).to(tl.float32)
            state += key[:, None] * value[None, :]
            mixed = tl.sum(state * query[:, None], 0)
        tl.store(out + j, mixed.to(out.dtype.element_ty), mask=wanted)
        q += heads * KEY_WIDTH
        k += heads * KEY_WIDTH
        v += heads * VALUE_WIDTH
        out += heads * VALUE_WIDTH
        if RULE == "generalized delta rule":
            beta += heads * KEY_WIDTH
            along += heads * KEY_WIDTH
        else:
            beta += heads
        if DECAY == "channel":
            log_decay += heads * KEY_WIDTH
        elif DECAY == "scalar":
            log_decay += heads
    if STORES:
        # In place too: no other program reads this part of the state.
        tl.store(final + place, state, mask=inside)


def recurrent(inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
    q, k, v, log_decay, beta, along = inputs.q, inputs.k, inputs.v, inputs.log_decay, inputs.beta, None
    if inputs.erase is not None:
        beta, along = inputs.erase.read, inputs.erase.along
    initial, token_mask, access = inputs.initial_state, inputs.token_mask, inputs.access
    rows, length, heads, key_width = k.shape
    value_width = v.shape[-1]
    final, slots = None, None if initial is None else access.slots
    if initial is not None:
        own = access.in_place and initial.is_contiguous() and initial.dtype == torch.float32
        writes = (own or slots is not None) and not access.discards
        initial = as_states(initial, slots is not None, writes)
        final = initial if writes else None
    if final is None:
        shape = (0 if access.discards else rows, heads, key_width, value_width)
        final = torch.empty(shape, dtype=torch.float32, device=v.device)
    out = torch.empty_like(v, memory_format=torch.contiguous_format)
    key_block = max(16, next_power_of_2(key_width))
    q = q.contiguous()
    # Few and plain arguments: the host takes longer to bind them than the device to compute a short row.
    _recurrent_kernel[(rows * heads, -(-value_width // VALUES))](
        q, k.contiguous(), v.contiguous(), q if log_decay is None else log_decay.contiguous(),
        q if beta is None else beta.contiguous(),
        q if along is None else along.contiguous(),
        q if token_mask is None else token_mask.contiguous().view(torch.uint8),
        q if slots is None else slots.contiguous(),
        q if initial is None else initial,
        final, out, length, heads, (final if initial is None else initial).stride(0), inputs.scale,
        KEY_WIDTH=key_width, KEY_BLOCK=key_block, VALUE_WIDTH=value_width, VALUE_BLOCK=VALUES,
        DECAY=inputs.decay_shape, RULE=inputs.rule, HAS_ALONG=along is not None,
        HAS_STATE=initial is not None, HAS_MASK=token_mask is not None, HAS_SLOTS=slots is not None,
        STORES=not access.discards,
        num_warps=max(1, key_block * VALUES // ELEMENTS_PER_WARP),
    )  # fmt: skip
    return out, final
