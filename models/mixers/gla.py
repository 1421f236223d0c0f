"""Gated linear attention: S_t = Diag(α_t) S_{t-1} + k_t v_tᵀ (arXiv 2312.06635, section 4.4)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.base import RecurrentMixer
from evalsuite.models.mixers.decay import DecayOptions, initial_decay
from evalsuite.models.mixers.interface import MIXERS
from evalsuite.models.mixers.layers import (
    expand_decay_groups,
    init_constant_,
    make_projection,
    num_decay_groups,
)
from evalsuite.models.mixers.options import ADDITIVE_NATIVE
from evalsuite.models.ops.gates import gla_gate_and_scale
from evalsuite.models.ops.numerics import upcast_fp32
from evalsuite.models.ops.recurrence import RecurrenceInputs


@dataclass(frozen=True, kw_only=True)
class GLAOptions(DecayOptions):
    """α_t = sigmoid(W x_t + b)^{1/τ}."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # fla's GatedLinearAttention.
        "native": {**ADDITIVE_NATIVE, "scale_writes": False, "decay_init": "native"},
    }
    least: ClassVar[dict[str, int]] = {**DecayOptions.least, "decay_group_size": 1, "decay_rank": 0}

    decay_group_size: int = 1
    """Adjacent key channels that share a decay; must divide the key width."""

    decay_rank: int = 16
    """Rank of the decay's projection; 0 is full rank."""
    decay_temperature: float = 16.0
    """τ: larger values keep the decay closer to one."""
    scale_writes: bool = True
    """Write √(1 − α²) ⊙ k, so that the state's norm does not depend on its memory length
    (arXiv 2303.06349). The paper writes k and relies on the output norm, which distilled students omit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.decay_temperature > 0:
            raise ConfigError(f"decay_temperature = {self.decay_temperature}: must be above 0")


@MIXERS.register("gla")
class GLA(RecurrentMixer):
    """Additive rule with one decay per key channel and token."""

    display_name = "GLA"
    Options = GLAOptions
    options: GLAOptions

    def _build_parameters(self) -> None:
        groups = num_decay_groups(self.head_k_dim, self.options.decay_group_size)
        self.gk_proj = make_projection(
            self.attention_shape.hidden_size, self.num_heads * groups, self.options.decay_rank
        )

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.options.decay_init == "native":
            return
        start = torch.logit(initial_decay(self.num_heads, self.options) ** self.options.decay_temperature)
        init_constant_(
            self.gk_proj, start.repeat_interleave(self.head_k_dim // self.options.decay_group_size)
        )

    def compute_gates(self, x: Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        logits = expand_decay_groups(self.gk_proj(x), self.num_heads, self.options.decay_group_size)
        if self.options.scale_writes:
            log_decay, k = gla_gate_and_scale(logits, inputs.k, self.options.decay_temperature)
            return replace(inputs, k=k, log_decay=log_decay)
        log_decay = functional.logsigmoid(upcast_fp32(logits)) / self.options.decay_temperature
        return replace(inputs, log_decay=log_decay)
