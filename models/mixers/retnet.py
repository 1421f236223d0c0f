"""RetNet: S_t = γ S_{t-1} + k_t v_tᵀ with a fixed γ for each head (arXiv 2307.08621, Eq. 8)."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from transformers import initialization as init

from evalsuite.models.mixers.base import Mixer, Terms
from evalsuite.models.mixers.options import MixerOptions
from evalsuite.models.mixers.parts import wide, write_size


@dataclass(frozen=True, kw_only=True)
class RetNetOptions(MixerOptions):
    """Retention rotates queries and keys, and has no activation on them."""

    rotary: bool = True
    activation: Literal["silu", "none"] = "none"
    scale_writes: bool = True
    """Write √(1 − γ²) k, so that a state keeps its size whatever its memory. The paper's output norm would
    undo the scale; a student without that norm needs it."""


class RetNet(Mixer):
    """Every head has its own memory length, from 32 to 512 tokens, whatever the text says."""

    name = "retnet"
    Options: ClassVar[type[MixerOptions]] = RetNetOptions
    options: RetNetOptions

    def build(self) -> None:
        # A buffer that is saved: γ is part of the model, but nothing trains it.
        self.log_decay: Tensor
        self.register_buffer("log_decay", torch.empty(self.heads))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        forget = torch.linspace(math.log(1 / 32), math.log(1 / 512), self.heads, dtype=torch.float64).exp()
        init.copy_(self.log_decay, torch.log1p(-forget).to(self.log_decay.dtype))

    def gates(self, x: Tensor, terms: Terms) -> Terms:
        log_decay = wide(self.log_decay)
        if self.options.scale_writes:
            terms = replace(terms, k=terms.k * write_size(log_decay).to(terms.k.dtype).unsqueeze(-1))
        return replace(terms, log_decay=log_decay)
