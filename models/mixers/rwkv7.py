"""RWKV-7: S_t = (Diag(w_t) − (a_t ⊙ κ_t) κ_tᵀ) S_{t-1} + k̃_t v_tᵀ with decay w = exp(−e^{−½} σ(·)), removal
key κ = (ξ ⊙ k) / ‖ξ ⊙ k‖, in-context learning rate a = σ(·), replacement key k̃ = k ⊙ (1 + (a − 1) ⊙ α) and
bonus (r_t · (ρ ⊙ k̃_t)) v_t (arXiv 2503.14456, section 4.1), with r from the teacher's queries.

Left out are what the original mixes before its projections, the interpolation with the previous token, in
whose place are the short convolutions, and across layers, the residual from the first layer's values. Its
group norm has a bias and a larger epsilon, and its initial biases of the decay depend on the layer, of which
`native` has those of the first.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import initialization as init

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.base import Prepared, RecurrentMixer
from evalsuite.models.mixers.decay import DecayOptions, initial_decay
from evalsuite.models.mixers.interface import MIXERS
from evalsuite.models.mixers.layers import init_constant_, make_projection, output_layer
from evalsuite.models.ops.numerics import upcast_fp32
from evalsuite.models.ops.recurrence import Erase, RecurrenceInputs
from evalsuite.models.ops.rms_norm import l2_norm

STRONGEST = math.exp(-0.5)
"""Largest −log w: a decay is at least 0.545."""


@dataclass(frozen=True, kw_only=True)
class RWKV7Options(DecayOptions):
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # The authors' time mixing without what the module leaves out.
        "native": {
            "short_conv": 0,
            "activation": "none",
            "qk_norm": "none",
            "output_gate": "lora",
            "gate_rank": -1,
            "gate_bias": False,
            "output_norm": "layer",
            "decay_init": "native",
        },
    }
    least: ClassVar[dict[str, int]] = {**DecayOptions.least, "decay_rank": -1}

    output_gate: Literal["silu", "sigmoid", "none", "lora"] = "silu"  # type: ignore[assignment]
    """Activation of the output gate; `lora`: a sigmoid between the factors of a low-rank projection, whose
    output is the gate."""
    decay_rank: int = -1
    """Rank of the projections of the decay, with a tanh between its factors, and of the learning rate; −1 is
    head_dim."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.min_decay > math.exp(-STRONGEST):
            least = f"{math.exp(-STRONGEST):.3f}"
            raise ConfigError(f"min_decay = {self.min_decay}: must be above {least}, the least of RWKV-7")
        if self.output_gate == "lora" and (self.gate_bias or not self.gate_rank):
            raise ConfigError(
                f"output_gate = 'lora' with gate_bias = {self.gate_bias}, gate_rank = {self.gate_rank}: set "
                "gate_bias: false, and gate_rank to -1 or above 0"
            )
        if self.decay_rank == 0:
            raise ConfigError("decay_rank = 0: must be -1 or above 0")


@MIXERS.register("rwkv7")
class RWKV7(RecurrentMixer):
    """Generalized delta rule: keys of their own for what is removed and for what is written."""

    display_name = "RWKV-7"
    Options = RWKV7Options
    options: RWKV7Options
    uses_delta_rule = True
    removes_along_own_key = True

    def _build_parameters(self) -> None:
        options, hidden_size = self.options, self.attention_shape.hidden_size
        rank = self.head_dim if options.decay_rank < 0 else options.decay_rank
        channels = self.num_heads * self.head_k_dim
        self.w_proj = make_projection(hidden_size, channels, rank, activation=nn.Tanh())
        self.a_proj = make_projection(hidden_size, channels, rank)
        if options.output_gate == "lora":
            rank = self.head_dim if options.gate_rank < 0 else options.gate_rank
            outputs = self.num_heads * self.head_v_dim
            self.g_proj = make_projection(hidden_size, outputs, rank, bias=False, activation=nn.Sigmoid())
        # As in the authors' code: ξ, α and ρ.
        self.k_k, self.k_a, self.r_k = (
            nn.Parameter(torch.empty(self.num_heads, self.head_k_dim)) for _ in range(3)
        )

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.options.decay_init == "native":
            self._reset_as_authors()
            return
        # With unit keys this is KDA with a write strength per channel.
        init.ones_(self.k_k)
        init.ones_(self.k_a)
        init.zeros_(self.r_k)
        start = torch.logit(-initial_decay(self.num_heads, self.options).log() / STRONGEST)
        init_constant_(self.w_proj, start.repeat_interleave(self.head_k_dim))
        init.zeros_(output_layer(self.a_proj).bias)

    def _reset_as_authors(self) -> None:
        """Set the initial values of the first layer of RWKV-LM (`RWKV_Tmix_x070`)."""
        heads, width = self.k_k.shape
        linear = torch.linspace(0, 1, heads * width)
        zigzag = torch.linspace(-1, 1, width).repeat(heads)
        zigzag = zigzag * zigzag.abs()
        init.copy_(output_layer(self.w_proj).bias, -5.5 + 6 * linear + 2.5 * zigzag)
        init.copy_(output_layer(self.a_proj).bias, -0.19 + 0.3 * zigzag + 0.4 * (linear - 0.5))
        init.copy_(self.k_k, (0.71 - 0.1 * (linear - 0.5)).view(heads, width))
        init.constant_(self.k_a, 1.02)
        init.constant_(self.r_k, -0.04)

    def compute_gates(self, x: Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        k = inputs.k
        rate = torch.sigmoid(upcast_fp32(self.split_heads(self.a_proj(x))))
        (removal,) = l2_norm(upcast_fp32(k) * upcast_fp32(self.k_k))
        return replace(
            inputs,
            k=(upcast_fp32(k) * (1 + (rate - 1) * upcast_fp32(self.k_a))).to(k.dtype),
            log_decay=-STRONGEST * torch.sigmoid(upcast_fp32(self.split_heads(self.w_proj(x)))),
            erase=Erase(removal, removal * rate),
        )

    def _bonus(self, inputs: RecurrenceInputs) -> Tensor:
        """Weight with which each token adds its own value after the norm [B, T, H]."""
        return (inputs.q * self.r_k.to(inputs.q.dtype) * inputs.k).sum(-1)

    def skip(self, inputs: RecurrenceInputs) -> Tensor | None:
        return self._bonus(inputs) if self.options.output_norm == "none" else None

    def norm_and_gate(self, mixed: Tensor, layer: Prepared) -> Tensor:
        if self.options.output_norm == "none":
            return super().norm_and_gate(mixed, layer)
        bonus = self._bonus(layer.inputs).unsqueeze(-1) * layer.inputs.v
        return self.apply_gate((self.o_norm(mixed) + bonus).flatten(2), layer.x)

    def apply_gate(self, mixed: Tensor, x: Tensor) -> Tensor:
        return mixed * self.g_proj(x) if self.options.output_gate == "lora" else super().apply_gate(mixed, x)
