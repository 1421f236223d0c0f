"""The recurrence as written in the papers, one token at a time: the reference, and the decoding step."""

import itertools

import torch
from torch import Tensor

from evalsuite.models.ops.recurrence.shapes import state_dtype


def recurrent_step(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, beta: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Advance the state by one token: S = (I − β k kᵀ) D S + β k vᵀ, o = Sᵀ q (arXiv 2603.26556, Eq. 4).

    Args:
        state: [B, H, K, V].
        q: [B, H, K], already scaled; k: [B, H, K]; v: [B, H, V].
        decay: None, or D as [B, H, 1] or [B, H, K].
        beta: None (additive write), or [B, H].

    Returns:
        The output [B, H, V] and the new state.
    """
    if decay is not None:
        state = state * decay.unsqueeze(-1)
    if beta is not None:
        read = torch.einsum("bhkv,bhk->bhv", state, k)
        v = (v - read) * beta.unsqueeze(-1)
    state = state + k.unsqueeze(-1) * v.unsqueeze(-2)
    return torch.einsum("bhkv,bhk->bhv", state, q), state


def naive_recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    log_decay: Tensor | None,
    beta: Tensor | None,
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence token by token; arguments and results as in `recurrence`."""
    if cu_seqlens is not None:
        return _packed(q, k, v, log_decay, beta, scale, initial_state, cu_seqlens)
    batch, length, heads, width = k.shape
    dtype = state_dtype(q, k, v, log_decay, beta, initial_state)
    state = (
        torch.zeros(batch, heads, width, v.shape[-1], dtype=dtype, device=k.device)
        if initial_state is None
        else initial_state.to(dtype)
    )
    queries, keys, values = q.to(dtype) * scale, k.to(dtype), v.to(dtype)
    decay = None if log_decay is None else log_decay.to(dtype).exp()
    if decay is not None and decay.dim() == 1:
        decay = decay.expand(batch, length, heads)
    if decay is not None and decay.dim() == 3:
        decay = decay.unsqueeze(-1)
    writes = None if beta is None else beta.to(dtype)
    outputs = []
    for t in range(length):
        o, state = recurrent_step(
            state,
            queries[:, t],
            keys[:, t],
            values[:, t],
            None if decay is None else decay[:, t],
            None if writes is None else writes[:, t],
        )
        outputs.append(o)
    out = torch.stack(outputs, 1) if outputs else torch.zeros_like(values)
    return out.to(v.dtype), state


def _packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    beta: Tensor | None,
    scale: float,
    initial_state: Tensor | None,
    cu_seqlens: Tensor,
) -> tuple[Tensor, Tensor]:
    """Run each packed sequence separately."""
    bounds = cu_seqlens.tolist()
    outputs, states = [], []
    for n, (start, end) in enumerate(itertools.pairwise(bounds)):
        per_token = log_decay is not None and log_decay.dim() > 1
        o, state = naive_recurrent(
            q[:, start:end],
            k[:, start:end],
            v[:, start:end],
            log_decay=log_decay[:, start:end] if log_decay is not None and per_token else log_decay,
            beta=None if beta is None else beta[:, start:end],
            scale=scale,
            initial_state=None if initial_state is None else initial_state[n : n + 1],
            cu_seqlens=None,
        )
        outputs.append(o)
        states.append(state)
    return torch.cat(outputs, 1), torch.cat(states)
