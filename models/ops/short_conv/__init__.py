"""Short causal depthwise convolutions of q, k and v, aware of pads, packed sequences and carried states."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.models.ops.dispatch import Draw, Kernel, op
from evalsuite.models.ops.recurrence import OWN, StateAccess


def _trains(
    parts: Sequence[Tensor],
    weights: Sequence[Tensor],
    num_activated: int,
    state: Tensor | None = None,
    token_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    access: StateAccess = OWN,
) -> bool:
    # A row's state may belong in the middle of the row, after pads.
    whole = state is None or (token_mask is None and access.slots is None)
    return whole and parts[0].shape[1] >= weights[0].shape[-1] > 1


def _infers(
    parts: Sequence[Tensor],
    weights: Sequence[Tensor],
    num_activated: int,
    state: Tensor | None = None,
    token_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    access: StateAccess = OWN,
) -> bool:
    # A program of several tokens would overwrite the state that those of the same row still read.
    readable = state is None or access.slots is None or access.discards or parts[0].shape[1] == 1
    full = cu_seqlens is None and (state is None or token_mask is None)
    return readable and full and weights[0].shape[-1] > 1


def _samples(draw: Draw) -> Iterator[tuple[Any, ...]]:
    widths = (48, 16, 16)
    x, weights, state = draw(2, 3, 80), draw(80, 4).split(widths), draw(2, 80, 3)
    mask = torch.tensor([[True, True, True], [True, False, False]], device=x.device)
    slots = torch.tensor([3, 1], device=x.device)
    # Three parts of a projection, of which two are activated.
    yield x.split(widths, -1), weights, 2, state
    yield x.split(widths, -1), weights, 2, None, mask
    yield x.split(widths, -1), weights, 2
    step = x[:, :1].split(widths, -1)
    yield step, weights, 2, state
    yield step, weights, 2, state.clone(), None, None, StateAccess(in_place=True)
    yield step, weights, 2, draw(4, 80, 3), None, None, StateAccess(slots)


@op(
    training=Kernel(module="training", where=_trains),
    inference=Kernel(module="inference", where=_infers, samples=_samples),
)
def short_convolutions(
    parts: Sequence[Tensor],
    weights: Sequence[Tensor],
    num_activated: int,
    state: Tensor | None = None,
    token_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    access: StateAccess = OWN,
) -> tuple[Sequence[Tensor], Tensor]:
    """y_t = Σ_d w_d x_{t-d} per channel, for each part, optionally followed by SiLU.

    Args:
        parts: one to three inputs [B, T, Cᵢ].
        weights: [Cᵢ, kernel_size] or [Cᵢ, 1, kernel_size]; the last column applies to the current token.
        num_activated: number of parts, the first ones, to which SiLU is applied.
        state: the last kernel_size − 1 inputs of each row before `parts`, [B, ΣCᵢ, kernel_size − 1]; None at
            the start.
        token_mask: real tokens [B, T], contiguous in each row; None if all are real.
        cu_seqlens: bounds [N + 1] of packed sequences (B = 1); a state then has N rows.
        access: where the rows' states lie in `state`, then [S, ΣCᵢ, kernel_size − 1], and whether new ones
            may be written over them; with slots `state` is returned.

    Returns:
        The outputs [B, T, Cᵢ], and the last kernel_size − 1 real inputs of each row (or packed sequence),
        [B or N, ΣCᵢ, kernel_size − 1].
    """
    if state is not None and access.slots is not None:
        own = state[access.slots]
        outputs, last = short_convolutions(parts, weights, num_activated, own, token_mask, cu_seqlens)
        if not access.discards:
            state[access.slots] = last.to(state.dtype)
        return outputs, state
    x = torch.cat(list(parts), -1)
    if token_mask is not None:
        x = x * token_mask.unsqueeze(-1)
    weight = torch.cat([each.flatten(1) for each in weights]).to(x.dtype)
    activated, past = sum(map(len, weights[:num_activated])), weight.shape[1] - 1
    if cu_seqlens is not None and state is not None:
        row, place, end = insert_states(x, past, state, cu_seqlens)
        history = functional.pad(row, [0, 0, past, 0])
        y = torch_convolution(history, weight, activated, row.shape[1], None)[:, place]
        last = row[0, end].transpose(1, 2)
    else:
        history = prepend_state(x, past, state, token_mask)
        y = torch_convolution(history, weight, activated, x.shape[1], cu_seqlens)
        if cu_seqlens is None:
            last = final_state(history, past, token_mask)
        else:
            last = packed_final_state(x, past, cu_seqlens)
    return y.split([part.shape[-1] for part in parts], -1), last


def insert_states(x: Tensor, past: int, state: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Insert the state of each packed sequence before its first token.

    Returns:
        The row [1, T + past · N, C], and its places of the tokens [T] and of the final states [N, past].
    """
    bounds = cu_seqlens.to(torch.long)
    sequence = torch.arange(state.shape[0], device=x.device)
    place = torch.arange(x.shape[1], device=x.device)
    place = place + past * torch.searchsorted(bounds, place, right=True)
    offsets = torch.arange(past, device=x.device)
    start = (bounds[:-1] + past * sequence).unsqueeze(1) + offsets
    row = x.new_zeros(1, x.shape[1] + past * state.shape[0], x.shape[2])
    row[0, place] = x[0]
    row[0, start] = state.to(x.dtype).transpose(1, 2)
    return row, place, (bounds[1:] + past * sequence).unsqueeze(1) + offsets


def packed_final_state(x: Tensor, past: int, cu_seqlens: Tensor) -> Tensor:
    """The last `past` inputs of each packed sequence, zeros before its start: [N, C, past]."""
    bounds = cu_seqlens.to(torch.long).unsqueeze(1)
    at = bounds[1:] + torch.arange(-past, 0, device=x.device)
    inside = (at >= bounds[:-1]).unsqueeze(-1)
    return (x[0, at.clamp_min(0)] * inside).transpose(1, 2)


def prepend_state(x: Tensor, past: int, state: Tensor | None, token_mask: Tensor | None) -> Tensor:
    """[B, past + T, C]: the inputs, with each row's state before its first real token."""
    if state is not None and token_mask is None:
        return torch.cat([state.to(x.dtype).transpose(1, 2), x], 1)
    history = functional.pad(x, [0, 0, past, 0])
    if state is None:
        return history
    assert token_mask is not None
    start = token_mask.long().argmax(1)
    at = start.unsqueeze(1) + torch.arange(past, device=x.device)
    previous = state.to(x.dtype).transpose(1, 2)
    return history.scatter(1, at.unsqueeze(-1).expand_as(previous), previous)


def final_state(history: Tensor, past: int, token_mask: Tensor | None) -> Tensor:
    """The last `past` real inputs of each row of `history` [B, past + T, C]: [B, C, past]."""
    if token_mask is None:
        return history[:, history.shape[1] - past :].transpose(1, 2)
    # Position after the last real token, counted in `history`; 0 for a row without real tokens.
    count = token_mask.sum(1)
    end = torch.where(count > 0, token_mask.long().argmax(1) + count, 0)
    at = end.unsqueeze(1) + torch.arange(past, device=history.device)
    return history.gather(1, at.unsqueeze(-1).expand(-1, -1, history.shape[-1])).transpose(1, 2)


def torch_convolution(
    history: Tensor, weight: Tensor, num_activated: int, length: int, cu_seqlens: Tensor | None
) -> Tensor:
    """Convolve the last `length` places of `history` [B, past + T, C] in plain torch."""
    past = weight.shape[1] - 1
    if length == 1 and cu_seqlens is None:
        return _activate((history * weight.T).sum(1, keepdim=True), num_activated)
    y = history[:, past:] * weight[:, -1]
    position = None if cu_seqlens is None else packed_position_ids(cu_seqlens, length)
    for lag in range(1, past + 1):
        first = past - lag
        shifted = history[:, first : first + length] * weight[:, -1 - lag]
        if position is not None:
            shifted = shifted * (position >= lag).unsqueeze(-1)
        y = y + shifted
    return _activate(y, num_activated)


def _activate(y: Tensor, num_activated: int) -> Tensor:
    if not num_activated:
        return y
    if num_activated == y.shape[-1]:
        return functional.silu(y)
    active, plain = y.split([num_activated, y.shape[-1] - num_activated], -1)
    return torch.cat([functional.silu(active), plain], -1)


def packed_position_ids(cu_seqlens: Tensor, length: int) -> Tensor:
    """Position of each packed token in its own sequence, [T]."""
    token = torch.arange(length, device=cu_seqlens.device)
    sequence = torch.searchsorted(cu_seqlens.to(torch.long), token, right=True) - 1
    return token - cu_seqlens[sequence]
