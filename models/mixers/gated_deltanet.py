"""Gated DeltaNet: S_t = α_t (I − β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ (arXiv 2412.06464, Eq. 10)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from evalsuite.models.mixers.base import RecurrentMixer
from evalsuite.models.mixers.decay import DecayOptions, init_decay_
from evalsuite.models.mixers.interface import MIXERS
from evalsuite.models.mixers.options import DELTA_NATIVE, MixerOptions
from evalsuite.models.ops.gates import PerHeadLinear, delta_gates
from evalsuite.models.ops.numerics import upcast_fp32
from evalsuite.models.ops.recurrence import RecurrenceInputs


@dataclass(frozen=True, kw_only=True)
class DeltaOptions(MixerOptions):
    negative_eigenvalues: bool = False
    """Let β reach 2, so that a write can flip the sign of the stored value (arXiv 2411.12537)."""


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNetOptions(DecayOptions, DeltaOptions):
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # fla's GatedDeltaNet.
        "native": {**DELTA_NATIVE, "decay_init": "native"},
    }
    delta_rule: bool = True
    """Without it, writes β_t k_t v_tᵀ are added to the decayed state (the gates alone)."""


@MIXERS.register("gated_deltanet")
class GatedDeltaNet(RecurrentMixer):
    """Delta rule with one decay per head and token."""

    display_name = "Gated DeltaNet"
    Options = GatedDeltaNetOptions
    options: GatedDeltaNetOptions
    uses_delta_rule = True

    def _build_parameters(self) -> None:
        self.uses_delta_rule = self.options.delta_rule
        self.b_proj = PerHeadLinear(self.attention_shape.hidden_size, self.num_heads, bias=False)
        # fla keeps the bias of a_proj as a separate parameter, dt_bias.
        self.a_proj = PerHeadLinear(self.attention_shape.hidden_size, self.num_heads)
        self.A_log = nn.Parameter(torch.empty(self.num_heads))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        init_decay_(self.A_log, self.a_proj, self.options)

    def joint_projections(self) -> list[nn.Module]:
        return [*super().joint_projections(), self.a_proj, self.b_proj]

    def compute_gates(self, x: Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        most = 2.0 if self.options.negative_eigenvalues else 1.0
        log_decay, beta = delta_gates(x, self.a_proj, self.b_proj, self.A_log, most)
        if not self.options.delta_rule:
            return replace(inputs, k=inputs.k * beta.to(inputs.k.dtype).unsqueeze(-1), log_decay=log_decay)
        return replace(inputs, log_decay=log_decay, beta=beta)


def delta_beta(logits: Tensor, negative_eigenvalues: bool) -> Tensor:
    """β in (0, 1), or in (0, 2) if 1 − β may be negative."""
    beta = torch.sigmoid(upcast_fp32(logits))
    return 2 * beta if negative_eigenvalues else beta
