"""The recurrence token by token, for steps of generation and short rows, with every decay and write rule.

A step reads and writes the whole state and computes next to nothing, so that its time is that of the memory:
the final state can take the place of the initial one, which saves a cache from copying it.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from evalsuite.models.kernels.inference.proof import proves_right, relative_difference
from evalsuite.models.recurrence.naive import naive_recurrent
from evalsuite.models.recurrence.shapes import DecayShape, decay_shape_of

VALUES = 32
"""Channels of the values of one program."""
ELEMENTS_PER_WARP = 2048
"""Elements of the state in the registers of a warp, 64 a thread."""


@triton.jit(do_not_specialize=["length", "heads", "decay_row", "decay_token", "beta_row", "beta_token"])
def _recurrent_kernel(  # type: ignore[no-untyped-def]
    q, k, v, log_decay, beta, initial, final, out, length, heads, scale,
    q_row, q_token, q_head, k_row, k_token, k_head, v_row, v_token, v_head,
    decay_row, decay_token, decay_head, beta_row, beta_token, beta_head, initial_row, initial_head,
    KEY_WIDTH: tl.constexpr, KEY_BLOCK: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    HAS_STATE: tl.constexpr, HAS_DECAY: tl.constexpr, DECAYS_CHANNELS: tl.constexpr, DELTA: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)
    row, head = pair // heads, pair % heads
    i, j = tl.arange(0, KEY_BLOCK), tl.program_id(1) * VALUE_BLOCK + tl.arange(0, VALUE_BLOCK)
    known, wanted = i < KEY_WIDTH, j < VALUE_WIDTH
    inside = known[:, None] & wanted[None, :]
    place = i[:, None] * VALUE_WIDTH + j[None, :]
    if HAS_STATE:
        start = initial + row * initial_row + head * initial_head
        state = tl.load(start + place, mask=inside, other=0.0).to(tl.float32)
    else:
        state = tl.zeros([KEY_BLOCK, VALUE_BLOCK], tl.float32)
    q += row * q_row + head * q_head
    k += row * k_row + head * k_head
    v += row * v_row + head * v_head
    log_decay += row * decay_row + head * decay_head
    beta += row * beta_row + head * beta_head
    out += (row * length * heads + head) * VALUE_WIDTH
    for _ in range(length):
        query = tl.load(q + i, mask=known, other=0.0).to(tl.float32) * scale
        key = tl.load(k + i, mask=known, other=0.0).to(tl.float32)
        value = tl.load(v + j, mask=wanted, other=0.0).to(tl.float32)
        if DECAYS_CHANNELS:
            state *= tl.exp(tl.load(log_decay + i, mask=known, other=0.0).to(tl.float32))[:, None]
        elif HAS_DECAY:
            state *= tl.exp(tl.load(log_decay).to(tl.float32))
        if DELTA:
            value -= tl.sum(state * key[:, None], 0)
            value *= tl.load(beta).to(tl.float32)
        state += key[:, None] * value[None, :]
        mixed = tl.sum(state * query[:, None], 0)
        tl.store(out + j, mixed.to(out.dtype.element_ty), mask=wanted)
        q += q_token
        k += k_token
        v += v_token
        log_decay += decay_token
        beta += beta_token
        out += heads * VALUE_WIDTH
    # All of this program's part of the state was read before, and nobody else reads it.
    end = final + pair * (KEY_WIDTH * VALUE_WIDTH)
    tl.store(end + place, state, mask=inside)


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None,
    beta: Tensor | None,
    scale: float,
    initial_state: Tensor | None,
    in_place: bool,
) -> tuple[Tensor, Tensor]:
    """S_t = (I − β_t k_t k_tᵀ) D_t S_{t-1} + β_t k_t v_tᵀ and o_t = scale · S_tᵀ q_t, in float32.

    Args:
        q, k: [B, T, H, K], in any 16- or 32-bit dtype and with any strides but a contiguous last axis, as all
            inputs; others are copied.
        v: [B, T, H, V].
        log_decay: None, [H], [B, T, H] or [B, T, H, K]; None for D = I.
        beta: [B, T, H]; None for the additive rule.
        scale: factor on the queries.
        initial_state: float32 [B, H, K, V]; None for zeros.
        in_place: write the final state over a contiguous initial one, which is then returned.

    Returns:
        The outputs [B, T, H, V] in the dtype of `v`, and the final states [B, H, K, V] in float32.
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    rows, length, heads, key_width = k.shape
    value_width = v.shape[-1]
    shape = decay_shape_of(k, log_decay)
    decay = q if log_decay is None else log_decay
    if shape == "channel" and decay.stride(-1) != 1:
        decay = decay.contiguous()
    decay_strides = (0, 0, decay.stride(0)) if shape == "head" else decay.stride()[:3]
    if initial_state is not None and initial_state.stride()[2:] != (value_width, 1):
        initial_state = initial_state.contiguous()
    final = initial_state if in_place else None
    if final is None or not final.is_contiguous() or final.dtype != torch.float32:
        final = torch.empty(rows, heads, key_width, value_width, dtype=torch.float32, device=v.device)
    out = torch.empty(rows, length, heads, value_width, dtype=v.dtype, device=v.device)
    key_block = max(16, triton.next_power_of_2(key_width))
    _recurrent_kernel[(rows * heads, triton.cdiv(value_width, VALUES))](
        q, k, v, decay, q if beta is None else beta, q if initial_state is None else initial_state,
        final, out, length, heads, scale,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *decay_strides,
        *((0, 0, 0) if beta is None else beta.stride()),
        *((0, 0) if initial_state is None else initial_state.stride()[:2]),
        KEY_WIDTH=key_width, KEY_BLOCK=key_block, VALUE_WIDTH=value_width, VALUE_BLOCK=VALUES,
        HAS_STATE=initial_state is not None, HAS_DECAY=log_decay is not None,
        DECAYS_CHANNELS=shape == "channel", DELTA=beta is not None,
        num_warps=max(1, key_block * VALUES // ELEMENTS_PER_WARP),
    )  # fmt: skip
    return out, final


def applies(x: Tensor, decay: DecayShape, delta: bool) -> bool:
    """Whether the kernel proves right on the device and in the dtype of `x`, in a form of the recurrence."""
    return _proven(x.device, x.dtype, decay, delta)


@functools.cache
def _proven(device: torch.device, dtype: torch.dtype, decay: DecayShape, delta: bool) -> bool:
    return proves_right(
        lambda: _deviations(device, dtype, decay, delta), dtype, "fla computes short recurrences"
    )


def _deviations(device: torch.device, dtype: torch.dtype, decay: DecayShape, delta: bool) -> list[float]:
    """Relative differences of outputs and states: a step in place, and several tokens from the start."""
    draw = torch.Generator().manual_seed(0)
    found = []
    for length, stored in ((1, torch.randn(2, 2, 64, 64, generator=draw).to(device)), (3, None)):
        shape = (2, length, 2, 64)
        q, k, v = torch.randn(3, *shape, generator=draw).to(device, dtype)
        k = functional.normalize(k, dim=-1)
        gates = torch.rand(shape, generator=draw).to(device)
        decays = {"none": None, "head": gates[0, 0, :, 0], "scalar": gates[..., 0], "channel": gates}[decay]
        log_decay = None if decays is None else decays.log()
        beta = gates[..., 1] if delta else None
        exact = naive_recurrent(
            q.float(),
            k.float(),
            v.float(),
            log_decay=log_decay,
            beta=beta,
            scale=0.5,
            initial_state=stored,
            cu_seqlens=None,
        )
        mine = recurrent(
            q,
            k,
            v,
            log_decay=log_decay,
            beta=beta,
            scale=0.5,
            initial_state=stored,
            in_place=stored is not None,
        )
        found += [relative_difference(*pair) for pair in zip(mine, exact, strict=True)]
    return found
