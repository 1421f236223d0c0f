"""mLSTM of xLSTM: C_t = f_t C_{t-1} + i_t k_t v_tᵀ, n_t = f_t n_{t-1} + i_t k_t,
h_t = C_tᵀ q_t / max(|n_t · q_t|, 1), f a sigmoid and i an exponential gate (arXiv 2405.04517, Eqs. 19–27;
soft cap as in xLSTM-7B, arXiv 2503.13427).

The normaliser n is the state of one more value column that is always one. The paper's running maximum m
divides numerator and denominator alike and cancels, so it is not carried: the soft cap keeps i below
e^cap, and a float32 state then holds sums over any text.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional
from transformers import initialization as init

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.base import Mixer, Terms
from evalsuite.models.mixers.options import MixerOptions
from evalsuite.models.mixers.parts import PerHead, retention, wide


@dataclass(frozen=True, kw_only=True)
class MLSTMOptions(MixerOptions):
    """Raw queries and keys, scaled as in attention: the normaliser takes care of their size."""

    activation: Literal["silu", "none"] = "none"
    qk_norm: Literal["l2", "none"] = "none"
    scale: Literal["one", "head_dim"] = "head_dim"
    gate_cap: float = 15.0
    """Gates are soft-capped to ± this: cap · tanh(x / cap)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.gate_cap <= 30:
            raise ConfigError(f"gate_cap = {self.gate_cap}: must be above 0 and at most 30, or exp overflows")


class MLSTM(Mixer):
    """A head forgets by a sigmoid gate and writes by an exponential one."""

    name = "mlstm"
    Options: ClassVar[type[MixerOptions]] = MLSTMOptions
    options: MLSTMOptions
    normalized = True

    def build(self) -> None:
        self.forget = PerHead(self.geometry.hidden, self.heads)
        self.input = PerHead(self.geometry.hidden, self.heads)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        # The input gate starts coupled to the forget gate, b_i = −b_f (seed 002, section 3.1).
        cap = self.options.gate_cap
        start = cap * torch.atanh((torch.logit(retention(self.heads)) / cap).clamp(max=0.999))
        init.zeros_(self.forget.weight)
        init.zeros_(self.input.weight)
        init.copy_(self.forget.bias, start.to(self.forget.bias.dtype))
        init.copy_(self.input.bias, -start.to(self.input.bias.dtype))

    def gates(self, x: Tensor, terms: Terms) -> Terms:
        write = self._cap(self.input(x)).exp()
        return replace(
            terms,
            k=terms.k * write.to(terms.k.dtype).unsqueeze(-1),
            log_decay=functional.logsigmoid(self._cap(self.forget(x))),
        )

    def _cap(self, logits: Tensor) -> Tensor:
        cap = self.options.gate_cap
        return cap * torch.tanh(wide(logits) / cap)

    def denominator(self, total: Tensor) -> Tensor | None:
        return total.abs().clamp_min(1.0)
