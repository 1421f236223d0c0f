"""Linear attention: S_t = S_{t-1} + φ(k_t) v_tᵀ, divided by Σ φ(q)·φ(k) (arXiv 2006.16236, Eqs. 18–20)."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor
from torch.nn import functional

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.base import Mixer, RecurrenceInputs
from evalsuite.models.mixers.options import MixerOptions


@dataclass(frozen=True, kw_only=True)
class LinearAttentionOptions(MixerOptions):
    """The state never decays, so positions come from the rotary embedding."""

    rotary: bool = True
    activation: Literal["silu", "none"] = "none"
    qk_norm: Literal["l2", "none"] = "none"
    feature_map: Literal["elu", "relu", "identity"] = "elu"
    """φ: elu(x) + 1, relu(x), or x."""
    normalizer: bool = True
    """Divide by the sum of the weights, so that the output is an average of values as in attention."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalizer and self.feature_map == "identity":
            raise ConfigError(
                f"feature_map = '{self.feature_map}' has negative values, whose sum can vanish and is no "
                "normalizer; set normalizer: false, or a positive feature map"
            )


class LinearAttention(Mixer):
    """Additive rule without decay: all past tokens keep their weight."""

    name = "linear_attention"
    Options: ClassVar[type[MixerOptions]] = LinearAttentionOptions
    options: LinearAttentionOptions

    def _build_parameters(self) -> None:
        self.uses_normalizer = self.options.normalizer

    def compute_gates(self, x: Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        return replace(inputs, q=self._features(inputs.q), k=self._features(inputs.k))

    def _features(self, x: Tensor) -> Tensor:
        if self.options.feature_map == "elu":
            return functional.elu(x) + 1
        return functional.relu(x) if self.options.feature_map == "relu" else x

    def normalizer(self, total: Tensor) -> Tensor | None:
        return total.clamp_min(1e-4)
