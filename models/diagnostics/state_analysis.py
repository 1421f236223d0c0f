"""Per-token statistics of recurrent states: decay, write strength, norm and effective rank.

Arrays for figures of gating dynamics during needle retrieval, an open question of arXiv 2504.14366.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers import RecurrentMixer
from evalsuite.models.recurrence import recurrent_step
from evalsuite.models.student import StudentForCausalLM

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateStatistics:
    """Arrays over recurrent layers, tokens and heads: [L, T, H]."""

    layers: tuple[int, ...]
    """Layer index of each row; softmax layers have no state."""
    decay: Array
    """Decay factor of the state at this token, averaged over channels; 1 without decay."""
    write: Array
    """Norm of the update: β ‖k‖ ‖v‖ (β = 1 for additive mixers), without the normalizer's column."""
    norm: Array
    """Frobenius norm of the state after this token."""
    rank: Array
    """Effective rank of that state: the exponential of the entropy of its normalized singular values."""


@torch.no_grad()
def analyze_states(student: StudentForCausalLM, input_ids: Tensor) -> StateStatistics:
    """Run the student on `input_ids` [T] and record every recurrent layer's state at every token.

    The recurrence runs token by token in float32, so the cost is that of a few texts, not of a corpus.

    Raises:
        ConfigError: the student has no recurrent layer.
    """
    recurrent = [
        n for n, layer in enumerate(student.model.layers) if isinstance(layer.self_attn, RecurrentMixer)
    ]
    if not recurrent:
        raise ConfigError("this model has no recurrent layer, so there is no state to analyze")
    recorded: dict[int, dict[str, Array]] = {}
    hooks = []
    for number in recurrent:
        mixer = student.model.layers[number].self_attn

        def record(
            module: RecurrentMixer, _: object, arguments: dict[str, Any], number: int = number
        ) -> None:
            recorded[number] = _layer_statistics(
                module, arguments["hidden_states"], arguments["position_embeddings"]
            )

        hooks.append(mixer.register_forward_pre_hook(record, with_kwargs=True))
    try:
        student.model(input_ids.unsqueeze(0))
    finally:
        for hook in hooks:
            hook.remove()
    arrays = {
        name: np.stack([recorded[n][name] for n in recurrent]) for name in ("decay", "write", "norm", "rank")
    }
    return StateStatistics(layers=tuple(recurrent), **arrays)


def _layer_statistics(
    mixer: RecurrentMixer, x: Tensor, position_embeddings: tuple[Tensor, Tensor]
) -> dict[str, Array]:
    inputs, _ = mixer.prepare_inputs(x, position_embeddings, None, None, None)
    k, v = inputs.k.float(), inputs.v.float()
    length, heads = k.shape[1:3]
    decay = torch.ones(1, length, heads, 1, device=k.device)
    if inputs.log_decay is not None:
        decay = inputs.log_decay.float().exp()
        decay = decay.expand(1, length, heads) if decay.dim() == 1 else decay
        decay = decay.unsqueeze(-1) if decay.dim() == 3 else decay
    beta = None if inputs.beta is None else inputs.beta.float()
    values = v[..., :-1] if mixer.uses_normalizer else v
    write = k.norm(dim=-1) * values.norm(dim=-1) * (1 if beta is None else beta)
    state = torch.zeros(1, heads, k.shape[-1], v.shape[-1], device=k.device)
    norms, ranks = [], []
    for t in range(length):
        strength = None if beta is None else beta[:, t]
        _, state = recurrent_step(state, k[:, t], k[:, t], v[:, t], decay[:, t], strength)
        norms.append(torch.linalg.matrix_norm(state)[0])
        ranks.append(effective_rank(state)[0])
    return {
        "decay": decay.mean(-1)[0].cpu().numpy(),
        "write": write[0].cpu().numpy(),
        "norm": torch.stack(norms).cpu().numpy(),
        "rank": torch.stack(ranks).cpu().numpy(),
    }


def effective_rank(state: Tensor) -> Tensor:
    """exp of the entropy of the singular values, normalized to sum 1 (Roy and Vetterli 2007).

    [..., K, V] → [...]; a zero state has rank 0.
    """
    singular = torch.linalg.svdvals(state)
    total = singular.sum(-1, keepdim=True)
    share = singular / total.clamp_min(1e-30)
    rank = torch.special.entr(share).sum(-1).exp()
    return torch.where(total.squeeze(-1) > 0, rank, torch.zeros_like(rank))
