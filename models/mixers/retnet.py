"""RetNet: S_t = γ S_{t-1} + k_t v_tᵀ with a fixed γ for each head (arXiv 2307.08621, Eq. 8)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from transformers import initialization as init

from evalsuite.models.mixers.base import RecurrentMixer
from evalsuite.models.mixers.decay import DecayOptions, initial_decay
from evalsuite.models.mixers.interface import MIXERS
from evalsuite.models.mixers.options import ADDITIVE_NATIVE
from evalsuite.models.ops.gates import input_scale
from evalsuite.models.ops.numerics import upcast_fp32
from evalsuite.models.ops.recurrence import RecurrenceInputs


@dataclass(frozen=True, kw_only=True)
class RetNetOptions(DecayOptions):
    """Retention applies rotary embeddings to queries and keys, and no activation."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # fla's MultiScaleRetention; its values are twice as wide by default (expand_v: 2).
        "native": {**ADDITIVE_NATIVE, "rotary": True, "scale_writes": False},
    }
    decay_init: Literal["range", "native"] = "native"
    """γ = 1 − 2^(−5−h) for head h, or from `min_decay` to `max_decay`."""

    rotary: bool = True
    activation: Literal["silu", "none"] = "none"
    scale_writes: bool = True
    """Write √(1 − γ²) k, so that the state's norm does not depend on its memory length. The paper's output
    norm would undo the scale; a student without that norm needs it."""


@MIXERS.register("retnet")
class RetNet(RecurrentMixer):
    """Additive rule with a fixed decay per head; γ = 1 − 2^(−5−h) of head h, a memory of 32 · 2^h tokens."""

    display_name = "RetNet"
    Options = RetNetOptions
    options: RetNetOptions

    def _build_parameters(self) -> None:
        # A saved buffer: γ belongs to the model, but is not trained.
        self.log_decay: Tensor
        self.register_buffer("log_decay", torch.empty(self.num_heads))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.options.decay_init == "range":
            log_decay = initial_decay(self.num_heads, self.options).log()
            init.copy_(self.log_decay, log_decay.to(self.log_decay.dtype))
            return
        forget = 2.0 ** (-5 - torch.arange(self.num_heads, dtype=torch.float64))
        init.copy_(self.log_decay, torch.log1p(-forget).to(self.log_decay.dtype))

    def compute_gates(self, x: Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        log_decay = upcast_fp32(self.log_decay)
        if self.options.scale_writes:
            scale = input_scale(log_decay).to(inputs.k.dtype).unsqueeze(-1)
            inputs = replace(inputs, k=inputs.k * scale)
        return replace(inputs, log_decay=log_decay)
