"""Gated DeltaNet: S_t = α_t (I − β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ (arXiv 2412.06464, Eq. 10)."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from evalsuite.models.mixers.base import Mixer, Terms
from evalsuite.models.mixers.options import MixerOptions
from evalsuite.models.mixers.parts import PerHead, retention, wide


@dataclass(frozen=True, kw_only=True)
class DeltaOptions(MixerOptions):
    negative_eigenvalues: bool = False
    """Let β reach 2, so that a write can flip the sign of what a key held (arXiv 2411.12537)."""


class GatedDeltaNet(Mixer):
    """Each write replaces what its key held, and every head forgets at its own pace."""

    name = "gated_deltanet"
    Options: ClassVar[type[MixerOptions]] = DeltaOptions
    options: DeltaOptions

    def build(self) -> None:
        self.write = PerHead(self.geometry.hidden, self.heads, bias=False)
        self.step = PerHead(self.geometry.hidden, self.heads)
        self.log_rate = nn.Parameter(torch.empty(self.heads))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        # log α = −e^{log_rate} · softplus(step); rate 1 and no weight leave α to the bias.
        init.zeros_(self.log_rate)
        init.zeros_(self.step.weight)
        init.copy_(self.step.bias, inverse_softplus(-retention(self.heads).log()).to(self.step.bias.dtype))

    def gates(self, x: Tensor, terms: Terms) -> Terms:
        return replace(
            terms,
            log_decay=-wide(self.log_rate).exp() * functional.softplus(wide(self.step(x))),
            beta=write_strength(self.write(x), self.options.negative_eigenvalues),
        )


def write_strength(logits: Tensor, negative_eigenvalues: bool) -> Tensor:
    """β in (0, 1), or in (0, 2) if 1 − β may be negative."""
    beta = torch.sigmoid(wide(logits))
    return 2 * beta if negative_eigenvalues else beta


def inverse_softplus(y: Tensor) -> Tensor:
    """The x with softplus(x) = y > 0, exact for small y."""
    return y + torch.log(-torch.expm1(-y))
