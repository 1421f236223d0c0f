"""Mamba-2 in its SSD form: S_t = e^{−Δ_t A} S_{t-1} + Δ_t B_t x_tᵀ, y_t = S_tᵀ C_t + D x_t (arXiv 2405.21060,
Eq. 16 and section 7), with C, B and x from the teacher's queries, keys and values (as arXiv 2408.15237)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from evalsuite.models.mixers.base import Prepared, RecurrentMixer
from evalsuite.models.mixers.decay import DecayOptions, init_decay_
from evalsuite.models.mixers.interface import MIXERS
from evalsuite.models.ops.gates import PerHeadLinear
from evalsuite.models.ops.numerics import upcast_fp32
from evalsuite.models.ops.recurrence import RecurrenceInputs


@dataclass(frozen=True, kw_only=True)
class Mamba2Options(DecayOptions):
    """No normalisation of queries and keys (arXiv 2603.26556, Table 8), which are scaled as in attention: a
    teacher's queries and keys are longer than those of a trained Mamba-2."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # The authors' Mamba2 (and fla's): SiLU on x, B and C, gate before one norm over all heads, D = 1.
        "native": {
            "v_activation": "silu",
            "scale": "one",
            "gate_bias": False,
            "output_norm": "rms_all_heads",
            "norm_before_gate": False,
            "decay_init": "native",
        },
        # arXiv 2603.26556, Table 8: the teacher's key and value heads, no output norm, no QK-norm.
        "gendistill": {"expand_kv": False, "teacher_qk_norm": False},
    }
    qk_norm: Literal["l2", "none"] = "none"
    scale: Literal["one", "head_dim"] = "head_dim"

    norm_before_gate: bool = True
    """Whether the output norm comes before the output gate."""
    skip: Literal["learned", "none"] = "learned"
    """D: weight with which each token adds its own value, one number per head."""


@MIXERS.register("mamba2")
class Mamba2(RecurrentMixer):
    """Additive rule in which one step size per head and token sets both decay and write strength."""

    display_name = "Mamba2"
    Options = Mamba2Options
    options: Mamba2Options

    def _build_parameters(self) -> None:
        # fla keeps the bias of a_proj as a separate parameter, dt_bias.
        self.a_proj = PerHeadLinear(self.attention_shape.hidden_size, self.num_heads)
        self.A_log = nn.Parameter(torch.empty(self.num_heads))
        if self.options.skip == "learned":
            self.D = nn.Parameter(torch.empty(self.num_heads))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        init_decay_(self.A_log, self.a_proj, self.options)
        if self.options.skip == "learned":
            init.constant_(self.D, 1.0 if self.options.decay_init == "native" else 0.0)

    def compute_gates(self, x: Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        step_size = functional.softplus(upcast_fp32(self.a_proj(x)))
        return replace(
            inputs,
            k=inputs.k * step_size.to(inputs.k.dtype).unsqueeze(-1),
            log_decay=-step_size * upcast_fp32(self.A_log).exp(),
        )

    def norm_and_gate(self, mixed: Tensor, layer: Prepared) -> Tensor:
        if self.options.norm_before_gate or self.options.output_norm == "none":
            return super().norm_and_gate(mixed, layer)
        gated = self.apply_gate(mixed.flatten(2), layer.x).unflatten(-1, (-1, self.head_v_dim))
        return self.o_norm(gated).flatten(2)

    def skip(self, inputs: RecurrenceInputs) -> Tensor | None:
        return self.D if self.options.skip == "learned" else None
