"""HGRN2: S_t = Diag(α_t) S_{t-1} + (1 − α_t) v_tᵀ, keys being what is forgotten (arXiv 2404.07904, Eq. 6)."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import initialization as init

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.base import Mixer, Terms
from evalsuite.models.mixers.options import MixerOptions
from evalsuite.models.mixers.parts import retention, wide


@dataclass(frozen=True, kw_only=True)
class HGRN2Options(MixerOptions):
    """Every channel is an average of values, so queries are scaled to sum to at most one."""

    scale: Literal["one", "head_dim"] = "head_dim"
    lower_bound: float = 0.0
    """α never falls below this; the paper raises it from layer to layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.lower_bound < 1:
            raise ConfigError(f"lower_bound = {self.lower_bound}: must be at least 0 and below 1")


class HGRN2(Mixer):
    """Every channel forgets at its own pace and writes as much as it forgets."""

    name = "hgrn2"
    Options: ClassVar[type[MixerOptions]] = HGRN2Options
    options: HGRN2Options
    keyed = False

    def build(self) -> None:
        self.keep_bias = nn.Parameter(torch.empty(self.heads, self.head_dim))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        start = torch.logit(retention(self.heads)).unsqueeze(-1).expand(-1, self.head_dim)
        init.copy_(self.keep_bias, start.to(self.keep_bias.dtype))

    def gates(self, x: Tensor, terms: Terms) -> Terms:
        # 1 − α = (1 − bound) · sigmoid(logits), computed directly: near full retention α rounds to one.
        logits = wide(terms.k) - wide(self.keep_bias)
        written = (1 - self.options.lower_bound) * torch.sigmoid(logits)
        return replace(terms, k=written.to(terms.k.dtype), log_decay=torch.log1p(-written.clamp_max(FORGET)))


FORGET = 1 - 1e-6
"""Most that one token can forget; a decay of exactly zero has no logarithm."""
