"""The recurrence as written in the papers, one token at a time: the reference, and the decoding step."""

import itertools
from functools import partial

import torch
from torch import Tensor

from evalsuite.models.ops.recurrence.inputs import RecurrenceInputs


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


def naive_recurrent(inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
    """Run the recurrence token by token."""
    if inputs.cu_seqlens is not None:
        return _packed(inputs, inputs.cu_seqlens)
    state, dtype = inputs.state(), inputs.state_dtype
    queries, keys, values = inputs.q.to(dtype) * inputs.scale, inputs.k.to(dtype), inputs.v.to(dtype)
    decay = None if inputs.decay_per_token is None else inputs.decay_per_token.to(dtype).exp()
    if decay is not None and decay.dim() == 3:
        decay = decay.unsqueeze(-1)
    writes = None if inputs.beta is None else inputs.beta.to(dtype)
    outputs = []
    for t in range(keys.shape[1]):
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
    return out.to(inputs.v.dtype), state


def _packed(inputs: RecurrenceInputs, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """Run each packed sequence separately."""
    initial = inputs.initial_state
    outputs, states = [], []
    for n, (start, end) in enumerate(itertools.pairwise(cu_seqlens.tolist())):
        alone = inputs.with_tokens(
            partial(torch.narrow, dim=1, start=start, length=end - start),
            initial_state=None if initial is None else initial[n : n + 1],
            cu_seqlens=None,
        )
        o, state = naive_recurrent(alone)
        outputs.append(o)
        states.append(state)
    return torch.cat(outputs, 1), torch.cat(states)
