"""The recurrence in chunks, in plain torch: exact, differentiable, the same algebra for every transition.

Inside a chunk everything is a matrix product; between chunks one state per head is carried. With G the
cumulative log decay inside a chunk, a write u_j made at token j is seen at token t with strength
exp(G_t − G_j), which never exceeds one. Only such differences are ever exponentiated, so that a gate
that forgets everything at once underflows to zero instead of overflowing.

For the delta rule the writes of a chunk solve one unit lower triangular system (the WY form of arXiv
2406.06484 and 2412.06464, here with decay before the correction):

    u_t = β_t (v_t − (e^{G_t} ⊙ k_t)ᵀ S − Σ_{j<t} ⟨k_t, k_j⟩_{G_t−G_j} u_j)
"""

import torch
from torch import Tensor

from evalsuite.models.recurrence.layout import Layout, fixed_layout, packed_layout
from evalsuite.models.recurrence.shapes import state_dtype

LARGEST_CHUNK = 64
"""Work inside a chunk grows with its length, work between chunks shrinks; they meet near the head width."""


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None,
    beta: Tensor | None,
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence chunk by chunk; arguments and results as `evalsuite.models.recurrence.recurrence`.

    `chunk` is a power of two, by default the head width, 64 at most. Memory grows with
    T · (chunk + K·V / chunk) per head.
    """
    batch, length, heads, width = k.shape
    dtype = state_dtype(q, k, v, log_decay, beta, initial_state)
    chunk = chunk or min(LARGEST_CHUNK, power_of_two(width))
    chunk = min(chunk, power_of_two(length))
    if cu_seqlens is None:
        layout, sequences = fixed_layout(batch, length, chunk), batch
    else:
        layout, sequences = packed_layout(cu_seqlens, length, chunk), cu_seqlens.numel() - 1
    if initial_state is None:
        state = torch.zeros(sequences, heads, width, v.shape[-1], dtype=dtype, device=k.device)
    else:
        state = initial_state.to(dtype)
    if layout.steps == 0:
        return torch.zeros_like(v), state

    # Autocast would send the products below to bfloat16, and the state must stay in float32.
    with torch.autocast(k.device.type, enabled=False):
        queries = layout.split(q.to(dtype)) * scale
        keys, values = layout.split(k.to(dtype)), layout.split(v.to(dtype))
        total = None
        if log_decay is not None:
            per_token = log_decay.expand(batch, length, heads) if log_decay.dim() == 1 else log_decay
            total = layout.split(per_token.to(dtype)).cumsum(2)
        writes = None if beta is None else layout.split(beta.to(dtype))
        out, state = _over_chunks(layout, queries, keys, values, total, writes, state)
        return layout.join(out).to(v.dtype), state


def power_of_two(size: int) -> int:
    """The smallest power of two that is not below `size`."""
    return 1 << max(size - 1, 0).bit_length()


def _over_chunks(
    layout: Layout,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    total: Tensor | None,
    beta: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """All of [M, H, C, …]; `total` is the cumulative log decay [M, H, C] or [M, H, C, K]."""
    scores, strict = scores_inside(q, k, total, beta)
    q_in, k_in, k_out, carry = q, k, k, None
    if total is not None:
        wide = total if total.dim() == 4 else total.unsqueeze(-1)
        end = wide[:, :, -1:]
        grown = wide.exp()
        q_in, k_out = q * grown, k * (end - wide).exp()
        k_in = k * grown if beta is not None else k
        carry = end.exp().transpose(-1, -2)
    if beta is None or strict is None:
        before, state = _carry_writes(layout, k_out.transpose(-1, -2) @ v, carry, state)
        return scores @ v + q_in @ before, state
    targets = torch.cat([v, k_in], -1) * beta.unsqueeze(-1)
    solved = torch.linalg.solve_triangular(strict, targets, upper=False, unitriangular=True)
    written, read = solved.split([v.shape[-1], k.shape[-1]], -1)
    before, written, state = _carry_corrections(layout, k_out.transpose(-1, -2), written, read, carry, state)
    return scores @ written + q_in @ before, state


def scores_inside(
    q: Tensor, k: Tensor, total: Tensor | None, beta: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Decayed scores between the tokens of a chunk.

    Args:
        q: [M, H, C, K] scaled queries; k: [M, H, C, K] keys.
        total: cumulative log decay [M, H, C] or [M, H, C, K], or None.
        beta: write strengths [M, H, C] of the delta rule, or None.

    Returns:
        ⟨q_t, k_j⟩ decayed from j to t for j ≤ t (else 0), [M, H, C, C]; and with the delta rule the
        strictly lower β_t ⟨k_t, k_j⟩ decayed likewise.
    """
    size = k.shape[2]
    rows = q.unsqueeze(0) if beta is None else torch.stack([q, k])
    if total is not None and total.dim() == 4:
        scores = _channel_scores(rows, k, total)
    elif total is not None:
        future = torch.ones(size, size, dtype=torch.bool, device=k.device).triu(1)
        span = total.unsqueeze(-1) - total.unsqueeze(-2)
        scores = (rows @ k.transpose(-1, -2)) * span.masked_fill(future, -torch.inf).exp()
    else:
        scores = (rows @ k.transpose(-1, -2)).tril()
    if beta is None:
        return scores.squeeze(0), None
    mine, between = scores.unbind()
    return mine, between.tril(-1) * beta.unsqueeze(-1)


def _channel_scores(rows: Tensor, k: Tensor, total: Tensor) -> Tensor:
    """Scores under a decay per channel: Σ_c r_tc k_jc exp(G_tc − G_jc) for j ≤ t.

    A product of matrices needs the exponent split into a part of t and a part of j, and both parts stay
    at or below zero only if the reference point lies between j and t. So the triangle is cut in halves:
    queries of the later half meet keys of the earlier half at their border, and each half is a smaller
    triangle. That is log2(C) products with no exponent above zero.

    Args:
        rows: [R, M, H, C, K]; k: [M, H, C, K]; total: [M, H, C, K].

    Returns:
        [R, M, H, C, C], lower triangular.
    """
    size = k.shape[-2]
    triangles = (rows * k).sum(-1)[..., None, None]
    half = 1
    while half < size:
        pairs = (size // (2 * half), 2, half)
        late, early = rows.unflatten(-2, pairs)[..., 1, :, :], k.unflatten(-2, pairs)[..., 0, :, :]
        cut = total.unflatten(-2, pairs)
        border = cut[..., 0, -1:, :]
        late = late * (cut[..., 1, :, :] - border).exp()
        early = early * (border - cut[..., 0, :, :]).exp()
        if half == 1:
            square = (late * early).sum(-1, keepdim=True)
        else:
            square = late @ early.transpose(-1, -2)
        first, second = triangles[..., 0::2, :, :], triangles[..., 1::2, :, :]
        upper = torch.cat([first, torch.zeros_like(first)], -1)
        triangles = torch.cat([upper, torch.cat([square, second], -1)], -2)
        half *= 2
    return triangles.squeeze(-3)


def _carry_writes(
    layout: Layout, writes: Tensor, carry: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Carry the state over the chunks of an additive rule.

    Args:
        writes: [M, H, K, V], what each chunk adds; carry: [M, H, K or 1, 1], what it keeps.

    Returns:
        The state before every chunk [M, H, K, V] and the state at the end of every sequence.
    """
    state = _sorted(layout, state)
    before: list[Tensor] = []
    ended: list[Tensor] = []
    kept = None if carry is None else carry.split(layout.active)
    for n, added in enumerate(writes.split(layout.active)):
        state, ended = _drop_ended(state, layout.active[n], ended)
        before.append(state)
        state = state + added if kept is None else state * kept[n] + added
    return torch.cat(before), _unsorted(layout, state, ended)


def _carry_corrections(
    layout: Layout, k_out: Tensor, written: Tensor, read: Tensor, carry: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Carry the state over the chunks of the delta rule.

    Args:
        k_out: [M, H, K, C]; written: [M, H, C, V], the writes if the state were empty; read: [M, H, C, K],
            what the writes take back per unit of state.

    Returns:
        The state before every chunk, the writes of every chunk, the state at the end of every sequence.
    """
    state = _sorted(layout, state)
    before: list[Tensor] = []
    made: list[Tensor] = []
    ended: list[Tensor] = []
    kept = None if carry is None else carry.split(layout.active)
    parts = (x.split(layout.active) for x in (k_out, written, read))
    for n, (keys, empty, back) in enumerate(zip(*parts, strict=True)):
        state, ended = _drop_ended(state, layout.active[n], ended)
        before.append(state)
        write = empty - back @ state
        made.append(write)
        state = keys @ write + (state if kept is None else state * kept[n])
    return torch.cat(before), torch.cat(made), _unsorted(layout, state, ended)


def _sorted(layout: Layout, state: Tensor) -> Tensor:
    return state if layout.order is None else state[layout.order]


def _drop_ended(state: Tensor, alive: int, ended: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Set the states of sequences without a further chunk aside; the shortest come first in `ended`."""
    if alive == state.shape[0]:
        return state, ended
    return state[:alive], [state[alive:], *ended]


def _unsorted(layout: Layout, state: Tensor, ended: list[Tensor]) -> Tensor:
    if layout.order is None:
        return state
    back = torch.empty_like(layout.order)
    back[layout.order] = torch.arange(layout.order.numel(), device=layout.order.device)
    return torch.cat([state, *ended])[back]
