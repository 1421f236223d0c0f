"""Kimi delta attention: S_t = (I − β_t k_t k_tᵀ) Diag(α_t) S_{t-1} + β_t k_t v_tᵀ (arXiv 2510.26692;
2603.26556, Eq. 4). With the SiLU gate and without output norm it is the mixer of Hybrid-KDA."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.base import Prepared, RecurrentMixer
from evalsuite.models.mixers.decay import DecayOptions, init_decay_
from evalsuite.models.mixers.gated_deltanet import DeltaOptions, delta_beta
from evalsuite.models.mixers.interface import MIXERS
from evalsuite.models.mixers.layers import (
    expand_decay_groups,
    make_projection,
    num_decay_groups,
    output_layer,
)
from evalsuite.models.mixers.options import DELTA_NATIVE
from evalsuite.models.ops.gates import PerHeadLinear
from evalsuite.models.ops.numerics import upcast_fp32
from evalsuite.models.ops.recurrence import RecurrenceInputs


@dataclass(frozen=True, kw_only=True)
class ChannelDecayOptions(DecayOptions, DeltaOptions):
    """Options of delta rules with a decay per channel: KDA's and Gated DeltaNet-2's."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # fla's KimiDeltaAttention and GatedDeltaNet2: low-rank sigmoid gate with a bias.
        "native": {
            **DELTA_NATIVE,
            "output_gate": "sigmoid",
            "gate_rank": -1,
            "gate_bias": True,
            "decay_init": "native",
        },
    }
    least: ClassVar[dict[str, int]] = {**DecayOptions.least, "decay_group_size": 1, "decay_rank": -1}

    decay_group_size: int = 1
    """Adjacent key channels that share a decay; must divide the key width. The full width gives one decay per
    head, as in Gated DeltaNet."""
    decay_rank: int = -1
    """Rank of the decay's projection; −1 is head_dim as in the paper, 0 is full rank."""


class ChannelDecayMixer(RecurrentMixer):
    """Delta rule whose state decays by channel."""

    options: ChannelDecayOptions
    uses_delta_rule = True

    def _build_parameters(self) -> None:
        rank = self.head_dim if self.options.decay_rank < 0 else self.options.decay_rank
        groups = num_decay_groups(self.head_k_dim, self.options.decay_group_size)
        # fla keeps the bias of f_proj as a separate parameter, dt_bias.
        self.f_proj = make_projection(self.attention_shape.hidden_size, self.num_heads * groups, rank)
        self.A_log = nn.Parameter(torch.empty(self.num_heads))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        groups = self.head_k_dim // self.options.decay_group_size
        init_decay_(self.A_log, self.f_proj, self.options, smallest=1, channels=groups)

    def log_decay(self, x: Tensor) -> Tensor:
        """log α [B, T, H, K]."""
        rate = upcast_fp32(self.A_log).exp().unsqueeze(-1)
        steps = expand_decay_groups(self.f_proj(x), self.num_heads, self.options.decay_group_size)
        return -rate * functional.softplus(upcast_fp32(steps))


@dataclass(frozen=True, kw_only=True)
class KDAOptions(ChannelDecayOptions):
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        **ChannelDecayOptions.presets,
        # The code of arXiv 2504.14366 (linearization): `native` with both defects below. Its full-rank gate
        # has a bias that starts at zero, which is left out.
        "published": {
            **DELTA_NATIVE,
            "gate_is_added": True,
            "decay_init": "native",
            "has_zero_dt_bias": True,
        },
        # arXiv 2603.26556, Table 8: the teacher's key and value heads, SiLU gate, no output norm, and L2 norm
        # without the teacher's learned scales.
        "gendistill": {"expand_kv": False, "gate_rank": -1, "teacher_qk_norm": False},
    }
    gate_is_added: bool = False
    """Add the projection of the output gate before the output norm, instead of multiplying by its activation
    after it: a defect of published code (linearization), whose norm takes the gate for a residual."""
    has_zero_dt_bias: bool = False
    """Start step sizes at softplus(0) instead of 0.001 to 0.1, so that a state is gone after a few tokens: a
    defect of published code (linearization)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gate_is_added and (self.output_gate == "none" or self.gate_bias):
            raise ConfigError(
                f"gate_is_added needs an output gate without bias, which would start as that of a factor; "
                f"found output_gate = '{self.output_gate}', gate_bias = {self.gate_bias}"
            )
        if self.has_zero_dt_bias and self.decay_init != "native":
            raise ConfigError("has_zero_dt_bias has no effect without decay_init: native")


@MIXERS.register("kda")
class KDA(ChannelDecayMixer):
    """Delta rule with one decay per key channel and token."""

    display_name = "KDA"
    Options = KDAOptions
    options: KDAOptions

    def _build_parameters(self) -> None:
        self.b_proj = PerHeadLinear(self.attention_shape.hidden_size, self.num_heads, bias=False)
        super()._build_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.options.has_zero_dt_bias:
            init.zeros_(output_layer(self.f_proj).bias)

    def compute_gates(self, x: Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        return replace(
            inputs,
            log_decay=self.log_decay(x),
            beta=delta_beta(self.b_proj(x), self.options.negative_eigenvalues),
        )

    def norm_and_gate(self, mixed: Tensor, layer: Prepared) -> Tensor:
        if not self.options.gate_is_added:
            return super().norm_and_gate(mixed, layer)
        mixed = mixed + self.g_proj(layer.x).unflatten(-1, (-1, self.head_v_dim))
        return (self.o_norm(mixed) if self.options.output_norm != "none" else mixed).flatten(2)
