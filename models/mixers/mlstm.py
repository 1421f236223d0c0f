"""mLSTM of xLSTM: C_t = f_t C_{t-1} + i_t k_t v_tᵀ, n_t = f_t n_{t-1} + i_t k_t,
h_t = C_tᵀ q_t / max(|n_t · q_t|, 1), with a sigmoid gate f and an exponential gate i (arXiv 2405.04517,
Eqs. 19–27; soft cap as in xLSTM-7B, arXiv 2503.13427).

The normaliser n is the state of an additional value column of ones. The paper's running maximum m cancels
between numerator and denominator, so it is not carried: the soft cap keeps i below e^cap, and a float32 state
holds such sums over any length.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.base import RecurrentMixer
from evalsuite.models.mixers.decay import DecayOptions, initial_decay
from evalsuite.models.mixers.interface import MIXERS
from evalsuite.models.mixers.layers import init_constant_
from evalsuite.models.ops.gates import PerHeadLinear
from evalsuite.models.ops.numerics import soft_capped, upcast_fp32
from evalsuite.models.ops.recurrence import RecurrenceInputs


@dataclass(frozen=True, kw_only=True)
class MLSTMOptions(DecayOptions):
    """Raw queries and keys, scaled as in attention: the normaliser compensates for their size."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # mLSTM layer of xLSTM-7B; its queries and keys have half the width (expand_k: 0.5).
        "native": {
            "short_conv": 0,
            "output_gate": "sigmoid",
            "gate_bias": False,
            "output_norm": "layer",
            "decay_init": "native",
        },
    }
    activation: Literal["silu", "none"] = "none"
    qk_norm: Literal["l2", "none"] = "none"
    scale: Literal["one", "head_dim"] = "head_dim"
    gate_cap: float = 15.0
    """Soft cap on the gates' logits: cap · tanh(x / cap)."""
    input_gate: bool = True
    """Weight each write by the exponential gate i_t."""
    input_gate_bias: float | None = None
    """Initial bias of the input gate; default: minus that of the forget gate, b_i = −b_f (arXiv
    2504.14366v1, section 3.1)."""
    normalizer: bool = True
    """Divide by max(|n_t · q_t|, 1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.gate_cap <= 30:
            raise ConfigError(f"gate_cap = {self.gate_cap}: must be above 0 and at most 30, or exp overflows")


@MIXERS.register("mlstm")
class MLSTM(RecurrentMixer):
    """Additive rule with a sigmoid forget gate and an exponential input gate per head and token."""

    display_name = "mLSTM"
    Options = MLSTMOptions
    options: MLSTMOptions

    def _build_parameters(self) -> None:
        self.uses_normalizer = self.options.normalizer
        self.f_proj = PerHeadLinear(self.attention_shape.hidden_size, self.num_heads)
        if self.options.input_gate:
            self.i_proj = PerHeadLinear(self.attention_shape.hidden_size, self.num_heads)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        cap = self.options.gate_cap
        if self.options.decay_init == "native":
            # Forget-gate biases of xLSTM.
            start = torch.linspace(3, 6, self.num_heads, dtype=torch.float64)
        else:
            logits = torch.logit(initial_decay(self.num_heads, self.options))
            start = cap * torch.atanh((logits / cap).clamp(max=0.999))
        init_constant_(self.f_proj, start)
        if self.options.input_gate:
            bias = self.options.input_gate_bias
            init_constant_(self.i_proj, -start if bias is None else bias)

    def compute_gates(self, x: Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        if self.options.input_gate:
            input_gate = self._soft_cap(self.i_proj(x)).exp()
            inputs = replace(inputs, k=inputs.k * input_gate.to(inputs.k.dtype).unsqueeze(-1))
        return replace(inputs, log_decay=functional.logsigmoid(self._soft_cap(self.f_proj(x))))

    def _soft_cap(self, logits: Tensor) -> Tensor:
        return soft_capped(upcast_fp32(logits), self.options.gate_cap)

    def normalizer(self, total: Tensor) -> Tensor:
        return total.abs().clamp_min(1.0)
