"""HGRN2: S_t = Diag(α_t) S_{t-1} + (1 − α_t) v_tᵀ, with 1 − α as the key (arXiv 2404.07904, Eq. 6)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.base import RecurrentMixer
from evalsuite.models.mixers.decay import DecayOptions, initial_decay
from evalsuite.models.mixers.interface import MIXERS
from evalsuite.models.ops.numerics import upcast_fp32
from evalsuite.models.ops.recurrence import RecurrenceInputs


@dataclass(frozen=True, kw_only=True)
class HGRN2Options(DecayOptions):
    """Each state channel is an average of values, so queries are scaled to sum to at most one."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # fla's HGRN2Attention: the query is the output gate, and one norm spans all heads.
        "native": {
            "short_conv": 0,
            "qk_norm": "none",
            "output_gate": "none",
            "output_norm": "rms_all_heads",
            "decay_init": "native",
            "learned_lower_bounds": True,
        },
    }
    scale: Literal["one", "head_dim"] = "head_dim"
    lower_bound: float = 0.0
    """Smallest α."""
    learned_lower_bounds: bool = False
    """Learn the smallest α of every channel, which rises from layer to layer, from 0 in the first: the
    cumulative sum of a softmax over layers (arXiv 2404.07904, section 2.2)."""
    decay_temperature: float = 1.0
    """τ in α = sigmoid(W x + b)^{1/τ}."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.lower_bound < 1:
            raise ConfigError(f"lower_bound = {self.lower_bound}: must be at least 0 and below 1")
        if self.learned_lower_bounds and self.lower_bound:
            raise ConfigError(f"lower_bound = {self.lower_bound}: must be 0 if learned_lower_bounds = True")
        if self.decay_temperature <= 0:
            raise ConfigError(f"decay_temperature = {self.decay_temperature}: must be above 0")


@MIXERS.register("hgrn2")
class HGRN2(RecurrentMixer):
    """One decay α per channel and token; each write is weighted by 1 − α."""

    display_name = "HGRN2"
    Options = HGRN2Options
    options: HGRN2Options
    has_keys = False

    def _build_parameters(self) -> None:
        # The authors' code has no bias, so that α starts at about ½.
        self.has_decay_bias = self.options.decay_init == "range"
        if self.has_decay_bias:
            self.f_bias = nn.Parameter(torch.empty(self.num_heads, self.head_k_dim))
        if self.options.learned_lower_bounds:
            self.lower_bounds = nn.Parameter(torch.empty(self.num_heads, self.head_k_dim))
            self.spans_layers = True
            self.bound_layers: tuple[HGRN2, ...] = (self,)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.options.learned_lower_bounds:
            init.zeros_(self.lower_bounds)
        if not self.has_decay_bias:
            return
        start = torch.logit(initial_decay(self.num_heads, self.options) ** self.options.decay_temperature)
        start = start.unsqueeze(-1).expand(-1, self.head_k_dim)
        init.copy_(self.f_bias, start.to(self.f_bias.dtype))

    def _lower_bound(self) -> Tensor | float:
        """Smallest α [H, K], or one number."""
        if not self.options.learned_lower_bounds:
            return self.options.lower_bound
        rows = torch.stack([upcast_fp32(layer.lower_bounds) for layer in self.bound_layers]).softmax(0)
        position = next(n for n, layer in enumerate(self.bound_layers) if layer is self)
        return rows[1 : position + 1].sum(0)

    def link_layers(self, mixers: Sequence[nn.Module]) -> None:
        """Layer l has the smallest decay Σ_{1 ≤ j ≤ l} softmax(lower_bounds)_j, a softmax over layers."""
        if self.options.learned_lower_bounds:
            self.bound_layers = tuple(
                m for m in mixers if isinstance(m, HGRN2) and m.options.learned_lower_bounds
            )

    def compute_gates(self, x: Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        # 1 − α is computed directly: as α approaches one, it rounds to one.
        logits = -upcast_fp32(inputs.k)
        if self.has_decay_bias:
            logits = logits + upcast_fp32(self.f_bias)
        forget = -torch.expm1(functional.logsigmoid(logits) / self.options.decay_temperature)
        write = (1 - self._lower_bound()) * forget
        log_decay = torch.log1p(-write.clamp_max(MAX_FORGET))
        return replace(inputs, k=write.to(inputs.k.dtype), log_decay=log_decay)


MAX_FORGET = 1 - 1e-6
"""Largest 1 − α of one token; a decay of exactly zero has no logarithm."""
