"""A mixer: linear attention with one fixed decay for all heads."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from evalsuite.models.mixers import RecurrenceInputs, RecurrentMixer
from evalsuite.models.mixers.options import MixerOptions

EVALSUITE_API = 1


@dataclass(frozen=True, kw_only=True)
class RetentionOptions(MixerOptions):
    """Options of the mixer, which recipes set under its name."""

    decay: float = 0.97
    """γ of every head."""


class Retention(RecurrentMixer):
    """S_t = γ S_{t-1} + k_t v_tᵀ with the same γ for every head."""

    display_name = "Example retention"
    Options: ClassVar[type[MixerOptions]] = RetentionOptions
    options: RetentionOptions

    def compute_gates(self, x: torch.Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        """Decay the state of every head by γ."""
        log_decay = x.new_full((self.num_heads,), math.log(self.options.decay), dtype=torch.float32)
        return replace(inputs, log_decay=log_decay)
