"""HGRN2: S_t = Diag(α_t) S_{t-1} + (1 − α_t) v_tᵀ, with 1 − α as the key (arXiv 2404.07904, Eq. 6)."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.base import Mixer, RecurrenceInputs
from evalsuite.models.mixers.init import initial_decay
from evalsuite.models.mixers.layers import upcast_fp32
from evalsuite.models.mixers.options import MixerOptions


@dataclass(frozen=True, kw_only=True)
class HGRN2Options(MixerOptions):
    """Each state channel is an average of values, so queries are scaled to sum to at most one."""

    scale: Literal["one", "head_dim"] = "head_dim"
    lower_bound: float = 0.0
    """Smallest α; the paper raises it from layer to layer."""
    decay_temperature: float = 1.0
    """τ in α = sigmoid(W x + b)^{1/τ}."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.lower_bound < 1:
            raise ConfigError(f"lower_bound = {self.lower_bound}: must be at least 0 and below 1")
        if self.decay_temperature <= 0:
            raise ConfigError(f"decay_temperature = {self.decay_temperature}: must be above 0")


class HGRN2(Mixer):
    """One decay α per channel and token; each write is weighted by 1 − α."""

    name = "hgrn2"
    Options: ClassVar[type[MixerOptions]] = HGRN2Options
    options: HGRN2Options
    has_keys = False

    def _build_parameters(self) -> None:
        self.f_bias = nn.Parameter(torch.empty(self.num_heads, self.head_dim))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        temperature = self.options.decay_temperature
        start = (
            torch.logit(initial_decay(self.num_heads) ** temperature).unsqueeze(-1).expand(-1, self.head_dim)
        )
        init.copy_(self.f_bias, start.to(self.f_bias.dtype))

    def compute_gates(self, x: Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        # 1 − α is computed directly: as α approaches one, it rounds to one.
        logits = upcast_fp32(self.f_bias) - upcast_fp32(inputs.k)
        forget = -torch.expm1(functional.logsigmoid(logits) / self.options.decay_temperature)
        write = (1 - self.options.lower_bound) * forget
        log_decay = torch.log1p(-write.clamp_max(MAX_FORGET))
        return replace(inputs, k=write.to(inputs.k.dtype), log_decay=log_decay)


MAX_FORGET = 1 - 1e-6
"""Largest 1 − α of one token; a decay of exactly zero has no logarithm."""
