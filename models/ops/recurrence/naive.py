"""The recurrence as written in the papers, one token at a time: the reference, and the decoding step."""

import torch
from torch import Tensor

from evalsuite.models.ops.recurrence.inputs import RecurrenceInputs


def naive_recurrent(inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
    """Run the recurrence of rows without `cu_seqlens` token by token (`RecurrenceInputs`)."""
    state, dtype = inputs.state(), inputs.state_dtype
    queries, keys, values = inputs.q.to(dtype) * inputs.scale, inputs.k.to(dtype), inputs.v.to(dtype)
    decay = None if inputs.decay_per_token is None else inputs.decay_per_token.to(dtype).exp()
    if decay is not None and decay.dim() == 3:
        decay = decay.unsqueeze(-1)
    beta = None if inputs.beta is None else inputs.beta.to(dtype)
    erase = None if inputs.erase is None else inputs.erase.map(lambda x: x.to(dtype))
    outputs = []
    for t in range(keys.shape[1]):
        k, v = keys[:, t], values[:, t]
        removed = None
        if erase is not None:
            read = torch.einsum("bhkv,bhk->bhv", state, erase.read[:, t])
            removed = (k if erase.along is None else erase.along[:, t]).unsqueeze(-1) * read.unsqueeze(-2)
        if decay is not None:
            state = state * decay[:, t].unsqueeze(-1)
        if beta is not None:
            read = torch.einsum("bhkv,bhk->bhv", state, k)
            v = (v - read) * beta[:, t].unsqueeze(-1)
        state = state + k.unsqueeze(-1) * v.unsqueeze(-2)
        if removed is not None:
            state = state - removed
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, queries[:, t]))
    out = torch.stack(outputs, 1) if outputs else torch.zeros_like(values)
    return out.to(inputs.v.dtype), state
