"""Gated DeltaNet: S_t = α_t (I − β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ (arXiv 2412.06464, Eq. 10)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from evalsuite.models.mixers.base import RecurrentMixer
from evalsuite.models.mixers.decay import DecayOptions, init_decay_
from evalsuite.models.mixers.interface import MIXERS
from evalsuite.models.mixers.layers import PerHeadLinear, project_together
from evalsuite.models.mixers.options import DELTA_NATIVE, MixerOptions
from evalsuite.models.ops.dispatch import inference_kernels
from evalsuite.models.ops.recurrence import RecurrenceInputs
from evalsuite.models.ops.reference import upcast_fp32


@dataclass(frozen=True, kw_only=True)
class DeltaOptions(MixerOptions):
    negative_eigenvalues: bool = False
    """Let β reach 2, so that a write can flip the sign of the stored value (arXiv 2411.12537)."""


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNetOptions(DecayOptions, DeltaOptions):
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "house": {},
        # fla's GatedDeltaNet.
        "native": {**DELTA_NATIVE, "decay_init": "native"},
    }
    delta_rule: bool = True
    """Without it, writes β_t k_t v_tᵀ are added to the decayed state (the gates alone)."""


@MIXERS.register("gated_deltanet")
class GatedDeltaNet(RecurrentMixer):
    """Delta rule with one decay per head and token."""

    display_name = "Gated DeltaNet"
    Options: ClassVar[type[MixerOptions]] = GatedDeltaNetOptions
    options: GatedDeltaNetOptions

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
        # Without the delta rule the gates are computed in other ways.
        gates = [self.a_proj, self.b_proj] if self.options.delta_rule else []
        return [*super().joint_projections(), *gates]

    def compute_gates(self, x: Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        if self.options.delta_rule and (kernels := inference_kernels(x)):
            a, b = project_together([self.a_proj, self.b_proj], x)
            most = 2.0 if self.options.negative_eigenvalues else 1.0
            log_decay, beta = kernels.delta_gates(a, b, self.a_proj.bias, self.A_log, most)
            return replace(inputs, log_decay=log_decay, beta=beta)
        a, b = self.a_proj(x), self.b_proj(x)
        log_decay = -upcast_fp32(self.A_log).exp() * functional.softplus(upcast_fp32(a))
        beta = delta_beta(b, self.options.negative_eigenvalues)
        if not self.options.delta_rule:
            return replace(inputs, k=inputs.k * beta.to(inputs.k.dtype).unsqueeze(-1), log_decay=log_decay)
        return replace(inputs, log_decay=log_decay, beta=beta)


def delta_beta(logits: Tensor, negative_eigenvalues: bool) -> Tensor:
    """β in (0, 1), or in (0, 2) if 1 − β may be negative."""
    beta = torch.sigmoid(upcast_fp32(logits))
    return 2 * beta if negative_eigenvalues else beta
