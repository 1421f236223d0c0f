"""Kimi delta attention: S_t = (I − β_t k_t k_tᵀ) Diag(α_t) S_{t-1} + β_t k_t v_tᵀ (arXiv 2510.26692;
2603.26556, Eq. 4). With the SiLU gate and without the output norm it is the mixer of Hybrid-KDA."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from evalsuite.models.mixers.base import Mixer, Terms
from evalsuite.models.mixers.gated_deltanet import DeltaOptions, inverse_softplus, write_strength
from evalsuite.models.mixers.options import MixerOptions
from evalsuite.models.mixers.parts import PerHead, projection, retention, start_constant, wide


@dataclass(frozen=True, kw_only=True)
class KDAOptions(DeltaOptions):
    decay_rank: int = -1
    """Rank of the decay's projection; −1 is head_dim as in the paper, 0 is full rank."""


class KDA(Mixer):
    """Each write replaces what its key held, and every channel forgets at its own pace."""

    name = "kda"
    Options: ClassVar[type[MixerOptions]] = KDAOptions
    options: KDAOptions

    def build(self) -> None:
        rank = self.head_dim if self.options.decay_rank < 0 else self.options.decay_rank
        self.write = PerHead(self.geometry.hidden, self.heads, bias=False)
        self.step = projection(self.geometry.hidden, self.heads * self.head_dim, rank)
        self.log_rate = nn.Parameter(torch.empty(self.heads))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        init.zeros_(self.log_rate)
        start = inverse_softplus(-retention(self.heads).log())
        start_constant(self.step, start.repeat_interleave(self.head_dim))

    def gates(self, x: Tensor, terms: Terms) -> Terms:
        rate = wide(self.log_rate).exp().unsqueeze(-1)
        return replace(
            terms,
            log_decay=-rate * functional.softplus(wide(self.split(self.step(x)))),
            beta=write_strength(self.write(x), self.options.negative_eigenvalues),
        )
