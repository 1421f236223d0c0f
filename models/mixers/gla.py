"""Gated linear attention: S_t = Diag(α_t) S_{t-1} + k_t v_tᵀ (arXiv 2312.06635, section 4.4)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.models.mixers.base import Mixer, Terms
from evalsuite.models.mixers.options import MixerOptions
from evalsuite.models.mixers.parts import projection, retention, start_constant, wide, write_size
from evalsuite.models.recurrence import using_fla


@dataclass(frozen=True, kw_only=True)
class GLAOptions(MixerOptions):
    """α_t = sigmoid(W x_t + b)^{1/τ}."""

    decay_rank: int = 16
    """Rank of the decay's projection; 0 is full rank."""
    decay_temperature: float = 16.0
    """τ: larger values hold the decay closer to one."""
    scale_writes: bool = True
    """Write √(1 − α²) ⊙ k, so that a state keeps its size whatever its memory (arXiv 2303.06349).
    The paper writes k and relies on the output norm that a distilled student leaves out."""


class GLA(Mixer):
    """A decay for every channel of the keys."""

    name = "gla"
    Options: ClassVar[type[MixerOptions]] = GLAOptions
    options: GLAOptions

    def build(self) -> None:
        self.decay = projection(self.geometry.hidden, self.heads * self.head_dim, self.options.decay_rank)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        start = torch.logit(retention(self.heads) ** self.options.decay_temperature)
        start_constant(self.decay, start.repeat_interleave(self.head_dim))

    def gates(self, x: Tensor, terms: Terms) -> Terms:
        logits = self.split(self.decay(x))
        if self.options.scale_writes and logits.requires_grad and using_fla(x):
            from evalsuite.models.mixers.kernels import gated_writes

            log_decay, k = gated_writes(logits, terms.k, self.options.decay_temperature)
            return replace(terms, k=k, log_decay=log_decay)
        log_decay = functional.logsigmoid(wide(logits)) / self.options.decay_temperature
        if self.options.scale_writes:
            terms = replace(terms, k=terms.k * write_size(log_decay).to(terms.k.dtype))
        return replace(terms, log_decay=log_decay)
