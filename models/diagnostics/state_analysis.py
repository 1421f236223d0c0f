"""What a recurrent state holds of a part of its text: decay, write strength, norm, rank, remainder, readout.

Gating dynamics while a needle is read are an open question of arXiv 2504.14366. Every mixer is the recurrence

    S_t = (D_t − r_t a_tᵀ) S_{t-1} + k_t v_tᵀ        o_t = S_tᵀ q_t

(under the delta rule with β k kᵀ D in the place of r aᵀ and β k in that of k), so one set of definitions
serves all. The state is linear in the values: S_t = Σ_j P_{j→t} k_j v_jᵀ with P_{j→t} = M_t ⋯ M_{j+1} and
M = D − r aᵀ. What a state holds of some tokens is therefore the state of
the same recurrence with all other values set to zero, whatever decays or is overwritten. The column of ones
that a normalizer adds to the values is left out throughout.

The torch backend computes them on every device, in float32: the same numbers whatever kernels a student runs
on, for values of any width.
"""

from dataclasses import replace

import torch
from torch import Tensor

from evalsuite.models.ops.recurrence import RecurrenceInputs
from evalsuite.models.ops.recurrence.chunked import chunked


def log_decay_per_token(inputs: RecurrenceInputs) -> Tensor:
    """Logarithm of the retention D_t of each step: float32 [B, T, H, K], or [B, T, H, 1] without channels.

    0 without decay. The exponential of the mean over n steps, to the power n, is the product of the steps.
    """
    shape = inputs.k.shape[:3]
    if inputs.log_decay is None:
        return torch.zeros(*shape, 1, dtype=torch.float32, device=inputs.k.device)
    log_decay = inputs.log_decay.float()
    return log_decay if log_decay.dim() == 4 else log_decay.expand(shape).unsqueeze(-1)


def write_norm(inputs: RecurrenceInputs) -> Tensor:
    """Frobenius norm of the write β_t k_t v_tᵀ, which is β_t ‖k_t‖ ‖v_t‖: float32 [B, T, H].

    β is 1 for additive mixers; their input gates are part of k.
    """
    norm = inputs.k.float().norm(dim=-1) * inputs.v.float().norm(dim=-1)
    return norm if inputs.beta is None else norm * inputs.beta.float()


def states_at(inputs: RecurrenceInputs, bounds: Tensor) -> Tensor:
    """States after given numbers of tokens.

    Args:
        inputs: of B rows of T tokens; what lies behind a row's last bound is not read.
        bounds: int64 [B, N], ascending in each row, between 0 and T; repeated bounds have equal states.

    Returns:
        float32 [N, B, H, K, V].
    """
    rows, length, heads, width = inputs.k.shape
    device = inputs.k.device
    state = torch.zeros(rows, heads, width, inputs.v.shape[-1], dtype=torch.float32, device=device)
    found = []
    starts = [0] * rows
    for ends in bounds.T.tolist():
        # Rows continue from their states as packed sequences; those without new tokens sit out.
        spans = [(row, a, b) for row, (a, b) in enumerate(zip(starts, ends, strict=True)) if a < b]
        if spans:
            places = torch.cat([torch.arange(row * length + a, row * length + b) for row, a, b in spans])
            lengths = torch.tensor([0, *(b - a for _, a, b in spans)])
            active = torch.tensor([row for row, _, _ in spans], device=device)
            part = _tokens(inputs, places.to(device))
            _, last = chunked(
                replace(part, initial_state=state[active], cu_seqlens=lengths.cumsum(0).to(device))
            )
            state = state.index_copy(0, active, last.float())
        found.append(state)
        starts = ends
    return torch.stack(found)


def split_states(inputs: RecurrenceInputs, tokens: Tensor, bounds: Tensor) -> tuple[Tensor, Tensor]:
    """States at `bounds` as in `states_at`, and what they hold of some tokens.

    Args:
        inputs: without a normalizer's column.
        tokens: bool [B, T], the tokens whose writes are followed.
        bounds: as in `states_at`.

    Returns:
        The states S and their part N that stems from the writes of `tokens`, each float32 [N, B, H, K, V].
    """
    mine = inputs.v * tokens[..., None, None]
    states = states_at(replace(inputs, v=torch.cat([inputs.v, mine], -1)), bounds)
    whole, part = states.split(inputs.v.shape[-1], -1)
    return whole, part


def effective_rank(state: Tensor) -> Tensor:
    """exp of the entropy of the singular values, normalized to sum 1 (Roy and Vetterli 2007).

    [..., K, V] → [...]; a zero state has rank 0.
    """
    singular = torch.linalg.svdvals(state)
    total = singular.sum(-1, keepdim=True)
    share = singular / total.clamp_min(1e-30)
    rank = torch.special.entr(share).sum(-1).exp()
    return torch.where(total.squeeze(-1) > 0, rank, torch.zeros_like(rank))


def readout_weights(inputs: RecurrenceInputs, positions: Tensor) -> Tensor:
    """Weights A_tj = q_tᵀ P_{j→t} k_j with which the output at t reads the value of token j.

    The rows of the recurrence's attention matrix (the hidden attention of arXiv 2403.01590) at some
    positions only, as derivatives of outputs by values: memory grows with T, not T².

    Args:
        inputs: of B rows of T tokens.
        positions: int64 [B, Q], the reading tokens t.

    Returns:
        float32 [B, H, Q, T], zero after t; without the query's scale and the normalizer, which are factors of
        a whole row, and without skip connection and window, which are not read from the state.
    """
    rows, length, heads, _ = inputs.k.shape
    queries = positions.shape[1]
    beta, log_decay, erase = inputs.beta, inputs.log_decay, inputs.erase
    with torch.enable_grad():
        # Channel i of the values belongs to query i alone, so that one backward pass yields all rows.
        values = torch.zeros(rows, length, heads, queries, device=inputs.k.device, requires_grad=True)
        out, _ = chunked(
            RecurrenceInputs(
                inputs.q.detach().float(),
                inputs.k.detach().float(),
                values,
                log_decay=None if log_decay is None else log_decay.detach().float(),
                beta=None if beta is None else beta.detach().float(),
                erase=None if erase is None else erase.map(lambda x: x.detach().float()),
            )
        )
        picked = out.gather(1, positions[:, None, None, :].expand(rows, 1, heads, queries))
        (weights,) = torch.autograd.grad(picked.sum(), values)
    return weights.permute(0, 2, 3, 1)


def weight_share(weights: Tensor, tokens: Tensor) -> Tensor:
    """Share Σ_{j in tokens} |A_tj| ÷ Σ_j |A_tj| of a readout that goes to some tokens.

    For softmax attention, whose weights are positive and sum to 1, it is the attention mass on the tokens. A
    row without weights has share 0.

    Args:
        weights: [B, H, Q, T].
        tokens: bool [B, T].

    Returns:
        [B, H, Q].
    """
    size = weights.abs()
    total = size.sum(-1)
    mine = (size * tokens[:, None, None, :]).sum(-1)
    return torch.where(total > 0, mine / total.clamp_min(1e-30), torch.zeros_like(total))


def _tokens(inputs: RecurrenceInputs, places: Tensor) -> RecurrenceInputs:
    """Tokens of all rows, one after the other, as one row: [B, T, …] → [1, N, …]."""

    def take(x: Tensor) -> Tensor:
        return x.flatten(0, 1)[places].unsqueeze(0)

    decay = inputs.log_decay
    return RecurrenceInputs(
        q=take(inputs.k),
        k=take(inputs.k),
        v=take(inputs.v),
        log_decay=decay if decay is None or decay.dim() == 1 else take(decay),
        beta=None if inputs.beta is None else take(inputs.beta),
        erase=None if inputs.erase is None else inputs.erase.map(take),
    )
