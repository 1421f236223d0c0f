"""The recurrence in chunks, in plain torch: exact, differentiable, the same algebra for all transitions.

Inside a chunk everything is a matrix product; between chunks one state per head is carried. With G the
cumulative log decay inside a chunk, a write u_j of token j reaches token t with weight exp(G_t − G_j), which
never exceeds one. Only such differences are exponentiated, so that a very strong decay underflows to zero
instead of overflowing.

With the delta rule, the writes of a chunk solve one unit lower triangular system (the WY form of arXiv
2406.06484 and 2412.06464, here with decay before the correction):

    u_t = β_t (v_t − (e^{G_t} ⊙ k_t)ᵀ S − Σ_{j<t} ⟨k_t, k_j⟩_{G_t−G_j} u_j)

Under the generalized delta rule the reads x_t = a_tᵀ S_{t-1} solve such a system:

    x_t = (e^{G_{t−1}} ⊙ a_t)ᵀ S + Σ_{j<t} ⟨a_t, k_j⟩_{G_{t−1}−G_j} v_j − Σ_{j<t} ⟨a_t, r_j⟩_{G_{t−1}−G_j} x_j

With r = k the writes u = v − x solve it at once. Otherwise a token has two keys, k that writes v and r that
writes −x. As a_t reads what q_{t−1} would, both share their decays: a is shifted by one token.

Chunks are laid out by step: all first chunks of the sequences, then all second chunks, and so on. With
sequences sorted by length, the chunks of one step are one slice, and the sequences that have a chunk at that
step are the first rows of the state. Packed sequences and rows of equal length therefore share one code path,
whose only loop runs over the chunks of the longest sequence.
"""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.models.ops.numerics import next_power_of_2
from evalsuite.models.ops.recurrence.inputs import Erase, RecurrenceInputs

MAX_CHUNK_SIZE = 64
"""Work inside chunks grows with the chunk size and work between chunks shrinks; they balance near the head
dimension."""


def chunked(inputs: RecurrenceInputs, chunk_size: int | None = None) -> tuple[Tensor, Tensor]:
    """Run the recurrence chunk by chunk.

    `chunk_size` is a power of two, by default the key width, at most 64. Memory per head grows with
    T · (chunk_size + K·V / chunk_size).
    """
    q, k, v, dtype = inputs.q, inputs.k, inputs.v, inputs.state_dtype
    layout, state = _layout(inputs, chunk_size), inputs.state()
    if layout.num_steps == 0:
        return torch.zeros_like(v), state

    # Autocast would compute the products below in bfloat16, but the state must stay in float32.
    with torch.autocast(k.device.type, enabled=False):
        queries = layout.chunk(q.to(dtype)) * inputs.scale
        keys, values = layout.chunk(k.to(dtype)), layout.chunk(v.to(dtype))
        cumulative_decay = None
        if (log_decay := inputs.decay_per_token) is not None:
            cumulative_decay = layout.chunk(log_decay.to(dtype)).cumsum(2)
        betas = None if inputs.beta is None else layout.chunk(inputs.beta.to(dtype))
        erase = None if inputs.erase is None else inputs.erase.map(lambda x: layout.chunk(x.to(dtype)))
        out, state = _run_chunks(layout, queries, keys, values, cumulative_decay, betas, erase, state)
        return layout.unchunk(out).to(v.dtype), state


def with_reads(
    inputs: RecurrenceInputs, compute: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]
) -> Tensor:
    """Compute what needs the outputs of a recurrence for many queries, from the same states of its chunks.

    Args:
        inputs: `plain` ones of the additive rule without a decay per channel; `scale` has no effect.
        compute: of a function from queries [M, H, C, K] to outputs [M, H, C, V], both in chunks, and of
            `inputs.q` in chunks; returns [M, H, C, V].

    Returns:
        What `compute` returned, as [B, T, H, V].
    """
    layout, dtype = _layout(inputs), inputs.state_dtype
    if layout.num_steps == 0:
        return torch.zeros_like(inputs.v)
    with torch.autocast(inputs.k.device.type, enabled=False):
        queries, keys, values = (layout.chunk(x.to(dtype)) for x in (inputs.q, inputs.k, inputs.v))
        log_decay = inputs.decay_per_token
        if log_decay is None:
            log_decay = inputs.k.new_zeros(inputs.k.shape[:3])
        cumulative_decay = layout.chunk(log_decay.to(dtype)).cumsum(2)
        weights, (decay, to_end, carry) = _decays_between(cumulative_decay), _decays(cumulative_decay)
        by_channel = keys.transpose(-1, -2)
        writes = by_channel * to_end.transpose(-1, -2)
        before, _, _ = _carry_state(layout, writes, values, None, carry, inputs.state())

        def read(q: Tensor) -> Tensor:
            return ((q @ by_channel) * weights) @ values + (q * decay) @ before

        return layout.unchunk(compute(read, queries)).to(inputs.v.dtype)


def _layout(inputs: RecurrenceInputs, chunk_size: int | None = None) -> "ChunkLayout":
    batch, length, _, width = inputs.k.shape
    chunk_size = chunk_size or min(MAX_CHUNK_SIZE, next_power_of_2(width))
    chunk_size = min(chunk_size, next_power_of_2(length))
    if inputs.cu_seqlens is not None:
        return packed_layout(inputs.cu_seqlens, length, chunk_size)
    num_active = (batch,) * -(-length // chunk_size)
    return ChunkLayout(batch=batch, length=length, chunk_size=chunk_size, num_active=num_active)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkLayout:
    """Position of each token of [B, T, …] among M chunks of C tokens."""

    batch: int
    length: int
    chunk_size: int
    num_active: tuple[int, ...]
    """Number of sequences with a chunk at each step."""
    slot_to_token: Tensor | None = None
    """Packed only: token index of each of the M·C slots, or T for an empty slot."""
    token_to_slot: Tensor | None = None
    """Packed only: slot of each token."""
    order: Tensor | None = None
    """Packed only: sequence indices by descending length."""

    @property
    def num_steps(self) -> int:
        return len(self.num_active)

    def chunk(self, x: Tensor) -> Tensor:
        """[B, T, H, …] → [M, H, C, …], empty slots filled with zeros."""
        tail = x.shape[2:]
        if self.slot_to_token is None:
            padding = self.num_steps * self.chunk_size - self.length
            padded = functional.pad(x, [0, 0] * (x.dim() - 2) + [0, padding])
            chunks = padded.view(self.batch, self.num_steps, self.chunk_size, *tail).transpose(0, 1)
            return chunks.reshape(-1, self.chunk_size, *tail).transpose(1, 2).contiguous()
        padded = functional.pad(x[0], [0, 0] * (x.dim() - 2) + [0, 1])
        return padded[self.slot_to_token].view(-1, self.chunk_size, *tail).transpose(1, 2).contiguous()

    def unchunk(self, x: Tensor) -> Tensor:
        """[M, H, C, V] → [B, T, H, V], the inverse of `chunk`."""
        x = x.transpose(1, 2)
        if self.token_to_slot is None:
            x = x.reshape(self.num_steps, self.batch, self.chunk_size, *x.shape[2:]).transpose(0, 1)
            return x.reshape(self.batch, self.num_steps * self.chunk_size, *x.shape[3:])[:, : self.length]
        return x.reshape(-1, *x.shape[2:])[self.token_to_slot].unsqueeze(0)


def packed_layout(cu_seqlens: Tensor, length: int, chunk_size: int) -> ChunkLayout:
    """Layout of sequences packed into one row; each sequence starts a new chunk."""
    bounds = cu_seqlens.tolist()
    lengths = [end - start for start, end in itertools.pairwise(bounds)]
    order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    slots: list[Tensor] = []
    num_active = []
    for step in range(-(-max(lengths, default=0) // chunk_size)):
        sequences = [n for n in order if lengths[n] > step * chunk_size]
        num_active.append(len(sequences))
        for n in sequences:
            first = bounds[n] + step * chunk_size
            tokens = torch.arange(first, first + chunk_size)
            slots.append(torch.where(tokens < bounds[n + 1], tokens, length))
    index = torch.cat(slots) if slots else torch.zeros(0, dtype=torch.long)
    token_to_slot = torch.zeros(length + 1, dtype=torch.long)
    token_to_slot[index] = torch.arange(index.numel())
    device = cu_seqlens.device
    return ChunkLayout(
        batch=1,
        length=length,
        chunk_size=chunk_size,
        num_active=tuple(num_active),
        slot_to_token=index.to(device),
        token_to_slot=token_to_slot[:length].to(device),
        order=torch.tensor(order, dtype=torch.long, device=device),
    )


def _run_chunks(
    layout: ChunkLayout,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cumulative_decay: Tensor | None,
    beta: Tensor | None,
    erase: Erase | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence on chunks [M, H, C, …], with the cumulative log decay [M, H, C] or [M, H, C, K]."""
    if erase is not None:
        return _run_erasing_chunks(layout, q, k, v, cumulative_decay, erase, state)
    scores, strict = scores_in_chunk(q, k, cumulative_decay, beta)
    q_in, k_in, k_out, carry = q, k, k, None
    if cumulative_decay is not None:
        decay, to_end, carry = _decays(cumulative_decay)
        q_in, k_out = q * decay, k * to_end
        k_in = k * decay if beta is not None else k
    writes, reads = v, None
    if beta is not None and strict is not None:
        targets = torch.cat([v, k_in], -1) * beta.unsqueeze(-1)
        solved = torch.linalg.solve_triangular(strict, targets, upper=False, unitriangular=True)
        writes, reads = solved.split([v.shape[-1], k.shape[-1]], -1)
    before, writes, state = _carry_state(layout, k_out.transpose(-1, -2), writes, reads, carry, state)
    return scores @ writes + q_in @ before, state


def _decays(cumulative_decay: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Decays from the start of a chunk to each token and from there to its end, both [M, H, C, K or 1], and
    over the whole chunk [M, H, K or 1, 1]."""
    log_decay = cumulative_decay if cumulative_decay.dim() == 4 else cumulative_decay.unsqueeze(-1)
    end = log_decay[:, :, -1:]
    return log_decay.exp(), (end - log_decay).exp(), end.exp().transpose(-1, -2)


def _run_erasing_chunks(
    layout: ChunkLayout,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cumulative_decay: Tensor | None,
    erase: Erase,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """`_run_chunks` under the generalized delta rule."""
    keys = k if erase.along is None else torch.cat([k, erase.along], -2)
    q_in, a_in, keys_out, carry = q, erase.read, keys, None
    if cumulative_decay is not None:
        decay, to_end, carry = _decays(cumulative_decay)
        q_in, a_in = q * decay, erase.read * _next_row(decay, first=1.0)
        keys_out = keys * (to_end if erase.along is None else torch.cat([to_end, to_end], -2))
    scores, by_key, strict = erasing_scores(q, k, cumulative_decay, erase)
    values = v if erase.along is None else by_key @ v
    solved = torch.linalg.solve_triangular(
        strict, torch.cat([values, a_in], -1), upper=False, unitriangular=True
    )
    writes, reads = solved.split([v.shape[-1], k.shape[-1]], -1)
    if erase.along is not None:
        writes, reads = torch.cat([v, -writes], -2), torch.cat([torch.zeros_like(reads), reads], -2)
    before, writes, state = _carry_state(layout, keys_out.transpose(-1, -2), writes, reads, carry, state)
    return scores @ writes + q_in @ before, state


def erasing_scores(
    q: Tensor, k: Tensor, cumulative_decay: Tensor | None, erase: Erase
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the decayed scores of a chunk under the generalized delta rule.

    Args:
        q: [M, H, C, K] scaled queries; k: [M, H, C, K] keys; `erase` likewise.
        cumulative_decay: cumulative log decay [M, H, C] or [M, H, C, K], or None.

    Returns:
        Of queries with keys (and after them with r, if it is not k), for j ≤ t: [M, H, C, C or 2 C]; and of
        a with keys and with r, strictly lower, each [M, H, C, C].
    """
    rows = torch.stack([q, functional.pad(erase.read[..., 1:, :], [0, 0, 0, 1])])
    scores = decayed_scores(rows, k, cumulative_decay)
    by_key = by_along = _next_row(scores[1])
    if erase.along is None:
        return scores[0], by_key, by_along
    others = decayed_scores(rows, erase.along, cumulative_decay)
    return torch.cat([scores[0], others[0]], -1), by_key, _next_row(others[1])


def _next_row(x: Tensor, first: float = 0.0) -> Tensor:
    """[…, C, D] moved down by one row, with `first` in the first."""
    return functional.pad(x[..., :-1, :], [0, 0, 1, 0], value=first)


def scores_in_chunk(
    q: Tensor, k: Tensor, cumulative_decay: Tensor | None, beta: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Compute the decayed scores between the tokens of a chunk.

    Args:
        q: [M, H, C, K] scaled queries; k: [M, H, C, K] keys.
        cumulative_decay: cumulative log decay [M, H, C] or [M, H, C, K], or None.
        beta: write strengths [M, H, C] of the delta rule, or None.

    Returns:
        ⟨q_t, k_j⟩ decayed from j to t for j ≤ t (else 0), [M, H, C, C]; and with the delta rule the
        strictly lower β_t ⟨k_t, k_j⟩ decayed likewise.
    """
    scores = decayed_scores(q.unsqueeze(0) if beta is None else torch.stack([q, k]), k, cumulative_decay)
    if beta is None:
        return scores.squeeze(0), None
    query_scores, key_scores = scores.unbind()
    return query_scores, key_scores.tril(-1) * beta.unsqueeze(-1)


def decayed_scores(rows: Tensor, k: Tensor, cumulative_decay: Tensor | None) -> Tensor:
    """⟨r_t, k_j⟩ decayed from j to t for j ≤ t (else 0), of rows [R, M, H, C, K]: [R, M, H, C, C]."""
    if cumulative_decay is not None and cumulative_decay.dim() == 4:
        return _channel_scores(rows, k, cumulative_decay)
    scores = rows @ k.transpose(-1, -2)
    if cumulative_decay is None:
        return scores.tril()
    return scores * _decays_between(cumulative_decay)


def _decays_between(cumulative_decay: Tensor) -> Tensor:
    """Decays from token j to t of a chunk for j ≤ t (else 0), of one per head [M, H, C]: [M, H, C, C]."""
    size = cumulative_decay.shape[-1]
    future = torch.ones(size, size, dtype=torch.bool, device=cumulative_decay.device).triu(1)
    span = cumulative_decay.unsqueeze(-1) - cumulative_decay.unsqueeze(-2)
    return span.masked_fill(future, -torch.inf).exp()


def _channel_scores(rows: Tensor, k: Tensor, cumulative_decay: Tensor) -> Tensor:
    """Compute scores under a decay per channel: Σ_c r_tc k_jc exp(G_tc − G_jc) for j ≤ t.

    A matrix product needs the exponent split into a part of t and a part of j, and both parts are at most
    zero only if the reference point lies between j and t. The triangle is therefore halved recursively:
    queries of the later half and keys of the earlier half use the border between them as reference, and each
    half is a smaller triangle. This takes log2(C) products, none with an exponent above zero.

    Args:
        rows: [R, M, H, C, K]; k: [M, H, C, K]; cumulative_decay: [M, H, C, K].

    Returns:
        [R, M, H, C, C], lower triangular.
    """
    size = k.shape[-2]
    triangles = (rows * k).sum(-1)[..., None, None]
    half = 1
    while half < size:
        pairs = (size // (2 * half), 2, half)
        late, early = rows.unflatten(-2, pairs)[..., 1, :, :], k.unflatten(-2, pairs)[..., 0, :, :]
        halves = cumulative_decay.unflatten(-2, pairs)
        border = halves[..., 0, -1:, :]
        late = late * (halves[..., 1, :, :] - border).exp()
        early = early * (border - halves[..., 0, :, :]).exp()
        if half == 1:
            square = (late * early).sum(-1, keepdim=True)
        else:
            square = late @ early.transpose(-1, -2)
        first, second = triangles[..., 0::2, :, :], triangles[..., 1::2, :, :]
        upper = torch.cat([first, torch.zeros_like(first)], -1)
        triangles = torch.cat([upper, torch.cat([square, second], -1)], -2)
        half *= 2
    return triangles.squeeze(-3)


def _carry_state(
    layout: ChunkLayout, k: Tensor, writes: Tensor, reads: Tensor | None, carry: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Carry the state over the chunks.

    Args:
        k: keys [M, H, K, C]; C is twice the chunk size if tokens have two keys.
        writes: [M, H, C, V]; with both delta rules those for an empty initial state.
        reads: correction of the writes of both delta rules per unit of state [M, H, C, K]; None: the additive
            rule.
        carry: decay over each chunk [M, H, K or 1, 1].

    Returns:
        The state before each chunk [M, H, K, V], the writes of each chunk, the final state of each sequence.
    """

    def by_step(x: Tensor | None) -> Iterable[Any]:
        return itertools.repeat(None) if x is None else x.split(layout.num_active)

    before: list[Tensor] = []
    corrected: list[Tensor] = []
    # States of sequences without further chunks, by descending length.
    finished: list[Tensor] = []
    if layout.order is not None:
        state = state[layout.order]
    sums = k @ writes if reads is None else None
    steps = zip(layout.num_active, *map(by_step, (k, writes, reads, sums, carry)), strict=False)
    for num_active, key, write, read, added, decay in steps:
        if num_active < state.shape[0]:
            state, finished = state[:num_active], [state[num_active:], *finished]
        before.append(state)
        if read is not None:
            write = write - read @ state
            corrected.append(write)
            added = key @ write
        state = added + (state if decay is None else state * decay)
    if layout.order is not None:
        state = torch.cat([state, *finished])[layout.order.argsort()]
    return torch.cat(before), writes if reads is None else torch.cat(corrected), state
