"""What a recurrent state goes through while a text is read: decay, write strength, norm and rank, per token.

Seed 001 asks how gates behave while a needle is found; this gives the arrays for such figures.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers import Mixer
from evalsuite.models.recurrence import step
from evalsuite.models.student import StudentForCausalLM

Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateProbe:
    """Arrays over recurrent layers, tokens and heads: [L, T, H]."""

    layers: tuple[int, ...]
    """Which layer each row is; softmax layers have no state."""
    decay: Array
    """Mean over channels of what a state keeps at this token; 1 without decay."""
    write: Array
    """Length of what is written: β ‖k‖ ‖v‖ (β = 1 for additive mixers), the normaliser's column left out."""
    norm: Array
    """Frobenius norm of the state after this token."""
    rank: Array
    """Effective rank of that state: the exponential of the entropy of its normalised singular values."""


@torch.no_grad()
def probe_states(student: StudentForCausalLM, input_ids: Tensor) -> StateProbe:
    """Read `input_ids` [T] and record every recurrent layer's state at every token.

    Steps token by token in float32, so use it on texts, not on corpora.

    Raises:
        ConfigError: the student has no recurrent layer.
    """
    recurrent = [n for n, layer in enumerate(student.model.layers) if isinstance(layer.self_attn, Mixer)]
    if not recurrent:
        raise ConfigError("this model has no recurrent layer, so there is no state to probe")
    seen: dict[int, dict[str, Array]] = {}
    hooks = []
    for number in recurrent:
        mixer = student.model.layers[number].self_attn

        def record(module: Mixer, _: object, inputs: dict[str, Any], number: int = number) -> None:
            seen[number] = _walk(module, inputs["hidden_states"], inputs["position_embeddings"])

        hooks.append(mixer.register_forward_pre_hook(record, with_kwargs=True))
    try:
        student.model(input_ids.unsqueeze(0))
    finally:
        for hook in hooks:
            hook.remove()
    arrays = {
        name: np.stack([seen[n][name] for n in recurrent]) for name in ("decay", "write", "norm", "rank")
    }
    return StateProbe(layers=tuple(recurrent), **arrays)


def _walk(mixer: Mixer, x: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> dict[str, Array]:
    terms, _ = mixer.terms(x, position_embeddings, None, None, None)
    k, v = terms.k.float(), terms.v.float()
    length, heads = k.shape[1:3]
    decay = torch.ones(1, length, heads, 1, device=k.device)
    if terms.log_decay is not None:
        kept = terms.log_decay.float().exp()
        kept = kept.expand(1, length, heads) if kept.dim() == 1 else kept
        decay = kept.unsqueeze(-1) if kept.dim() == 3 else kept
    beta = None if terms.beta is None else terms.beta.float()
    values = v[..., :-1] if mixer.normalized else v
    write = k.norm(dim=-1) * values.norm(dim=-1) * (1 if beta is None else beta)
    state = torch.zeros(1, heads, k.shape[-1], v.shape[-1], device=k.device)
    norms, ranks = [], []
    for t in range(length):
        strength = None if beta is None else beta[:, t]
        _, state = step(state, k[:, t], k[:, t], v[:, t], decay[:, t], strength)
        norms.append(torch.linalg.matrix_norm(state)[0])
        ranks.append(effective_rank(state)[0])
    return {
        "decay": decay.mean(-1)[0].cpu().numpy(),
        "write": write[0].cpu().numpy(),
        "norm": torch.stack(norms).cpu().numpy(),
        "rank": torch.stack(ranks).cpu().numpy(),
    }


def effective_rank(state: Tensor) -> Tensor:
    """exp of the entropy of singular values scaled to sum to one (Roy and Vetterli 2007).

    [..., K, V] → [...]; an empty state has rank 0.
    """
    singular = torch.linalg.svdvals(state)
    total = singular.sum(-1, keepdim=True)
    share = singular / total.clamp_min(1e-30)
    rank = torch.special.entr(share).sum(-1).exp()
    return torch.where(total.squeeze(-1) > 0, rank, torch.zeros_like(rank))
