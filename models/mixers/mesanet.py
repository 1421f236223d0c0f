"""MesaNet: ridge regression from keys to values over a decaying memory, solved anew at every token,

    G_t = γ_t G_{t-1} + β_t k_t v_tᵀ    H_t = γ_t H_{t-1} + β_t k_t k_tᵀ    o_t = G_tᵀ (H_t + Λ)⁻¹ q_t

(arXiv 2506.05233), with γ and β per head and token and a learned Λ per key channel. Both states
are one, S = [G | H], of the additive rule with values [v | k]: only queries are new, x = (H + Λ)⁻¹ q
(`ridge_queries`). With Λ^{-1/2} as a factor on queries and keys the ridge is the identity, which leaves o as
it is and lets conjugate gradients start from the scale of each channel.

For Λ → ∞ the layer is gated linear attention, o = Gᵀ Λ⁻¹ q; for Λ → 0 it interpolates: k_t returns v_t.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.base import Prepared, RecurrentMixer
from evalsuite.models.mixers.decay import DecayOptions, initial_decay, inverse_softplus
from evalsuite.models.mixers.interface import MIXERS, ServedAs
from evalsuite.models.mixers.layers import init_constant_
from evalsuite.models.ops.gates import PerHeadLinear
from evalsuite.models.ops.numerics import upcast_fp32
from evalsuite.models.ops.recurrence import RecurrenceInputs
from evalsuite.models.ops.recurrence.ridge import ridge_queries


@dataclass(frozen=True, kw_only=True)
class MesaNetOptions(DecayOptions):
    """Λ = softplus(λ) + `lambda_lower_bound`."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # fla's MesaNet.
        "native": {
            "short_conv_values": False,
            "output_gate": "none",
            "output_norm": "rms",
            "decay_init": "native",
        },
    }
    least: ClassVar[dict[str, int]] = {**DecayOptions.least, "cg_steps": 1}

    short_conv_values: bool = True
    """Convolve v as well as q and k."""
    lambda_init: float = 1.0
    """Initial Λ. Large, the layer starts as gated linear attention, whose outputs grow with the memory; at 1,
    the size of a key, outputs are averages of values at any length, as a teacher's are."""
    lambda_lower_bound: float = 0.25
    """Least Λ. Steps of conjugate gradients to a given error grow with the root of max H / min Λ."""
    cg_steps: int = 30
    """Steps of conjugate gradients, in training and in generation; each reads H once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.lambda_lower_bound < self.lambda_init:
            raise ConfigError(
                f"lambda_lower_bound = {self.lambda_lower_bound}, lambda_init = {self.lambda_init}: "
                "need 0 < lambda_lower_bound < lambda_init"
            )
        if self.qk_norm == "none":
            raise ConfigError(
                "qk_norm = 'none': conjugate gradients of keys of any length do not converge in cg_steps; "
                "set qk_norm: l2"
            )


@MIXERS.register("mesanet")
class MesaNet(RecurrentMixer):
    """Additive rule with one decay per head and token, read by ridge regression."""

    display_name = "MesaNet"
    Options = MesaNetOptions
    options: MesaNetOptions
    served_as: ServedAs = None

    def _build_parameters(self) -> None:
        hidden_size, heads = self.attention_shape.hidden_size, self.num_heads
        self.a_proj = PerHeadLinear(hidden_size, heads)
        self.b_proj = PerHeadLinear(hidden_size, heads)
        self.lambda_params = nn.Parameter(torch.empty(heads, self.head_k_dim))

    @property
    def convolves_values(self) -> bool:
        return self.options.short_conv_values

    def reset_parameters(self) -> None:
        super().reset_parameters()
        above = torch.tensor(self.options.lambda_init - self.options.lambda_lower_bound, dtype=torch.float64)
        init.constant_(self.lambda_params, inverse_softplus(above).item())
        if self.options.decay_init == "range":
            init_constant_(self.a_proj, torch.logit(initial_decay(self.num_heads, self.options)))

    def joint_projections(self) -> list[nn.Module]:
        return [*super().joint_projections(), self.a_proj, self.b_proj]

    def further_columns(self) -> int:
        return self.key_dim()

    def mixing_flops(self, length: int) -> float:
        solving = self.options.cg_steps * self.num_heads * self.key_dim() ** 2
        return super().mixing_flops(length) + 2 * solving

    def compute_gates(self, x: Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        log_decay = functional.logsigmoid(upcast_fp32(self.a_proj(x)))
        beta = torch.sigmoid(upcast_fp32(self.b_proj(x)))
        ridge = functional.softplus(upcast_fp32(self.lambda_params)) + self.options.lambda_lower_bound
        # In float32 throughout: a rounded H need not be symmetric.
        q, k = (upcast_fp32(part) * ridge.rsqrt() for part in (inputs.q, inputs.k))
        v = torch.cat([upcast_fp32(inputs.v), k], -1)
        inputs = replace(inputs, q=q, k=beta.unsqueeze(-1) * k, v=v, log_decay=log_decay)
        return replace(inputs, q=ridge_queries(inputs, self.options.cg_steps, self.recurrence))

    def apply_normalizer(self, o: Tensor, layer: Prepared) -> Tensor:
        return super().apply_normalizer(o, layer).to(layer.x.dtype)
