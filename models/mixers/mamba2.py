"""Mamba-2 in its SSD form: S_t = e^{−Δ_t A} S_{t-1} + Δ_t B_t x_tᵀ, y_t = S_tᵀ C_t + D x_t (arXiv 2405.21060,
Eq. 16 and section 7), with C, B and x from the teacher's queries, keys and values (as arXiv 2408.15237)."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from evalsuite.models.mixers.base import Mixer, Terms
from evalsuite.models.mixers.gated_deltanet import inverse_softplus
from evalsuite.models.mixers.options import MixerOptions
from evalsuite.models.mixers.parts import PerHead, retention, wide


@dataclass(frozen=True, kw_only=True)
class Mamba2Options(MixerOptions):
    """No normalisation of queries and keys (seed 003, Table 8)."""

    skip: Literal["learned", "none"] = "learned"
    """D: how much of its own value each token adds, one number per head."""


class Mamba2(Mixer):
    """One step size per head and token sets both what is kept and what is written."""

    name = "mamba2"
    Options: ClassVar[type[MixerOptions]] = Mamba2Options
    options: Mamba2Options

    def build(self) -> None:
        self.step = PerHead(self.geometry.hidden, self.heads)
        self.log_rate = nn.Parameter(torch.empty(self.heads))
        if self.options.skip == "learned":
            self.skip = nn.Parameter(torch.empty(self.heads))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        init.zeros_(self.log_rate)
        init.zeros_(self.step.weight)
        init.copy_(self.step.bias, inverse_softplus(-retention(self.heads).log()).to(self.step.bias.dtype))
        if self.options.skip == "learned":
            init.zeros_(self.skip)

    def gates(self, x: Tensor, terms: Terms) -> Terms:
        step = functional.softplus(wide(self.step(x)))
        return replace(
            terms,
            k=terms.k * step.to(terms.k.dtype).unsqueeze(-1),
            log_decay=-step * wide(self.log_rate).exp(),
            skip=self.skip if self.options.skip == "learned" else None,
        )
