"""Linear attention: S_t = S_{t-1} + φ(k_t) v_tᵀ, divided by Σ φ(q)·φ(k) (arXiv 2006.16236, Eqs. 18–20)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.base import RecurrentMixer
from evalsuite.models.mixers.feature_maps import FEATURE_MAPS, FeatureMapName
from evalsuite.models.mixers.interface import MIXERS
from evalsuite.models.mixers.options import MixerOptions
from evalsuite.models.ops.recurrence import RecurrenceInputs


@dataclass(frozen=True, kw_only=True)
class LinearAttentionOptions(MixerOptions):
    """The state never decays, so positions come from the rotary embedding."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # fla's LinearAttention.
        "native": {
            "rotary": False,
            "short_conv": 0,
            "scale": "head_dim",
            "feature_map": "elementwise_product",
            "normalizer": False,
            "output_norm": "rms",
            "output_gate": "none",
        },
    }
    rotary: bool = True
    activation: Literal["silu", "none"] = "none"
    qk_norm: Literal["l2", "none"] = "none"
    feature_map: FeatureMapName = "elu"
    """φ; see `evalsuite.models.mixers.feature_maps`."""
    tie_feature_map_qk: bool = False
    """Use one learned feature map for queries and keys."""
    normalizer: bool = True
    """Divide by the sum of the weights, so that the output is an average of values as in attention."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalizer and FEATURE_MAPS[self.feature_map].signed:
            raise ConfigError(
                f"feature_map = '{self.feature_map}' has negative values, whose sum can vanish and is no "
                "normalizer; set normalizer: false, or a positive feature map"
            )


@MIXERS.register("linear_attention")
class LinearAttention(RecurrentMixer):
    """Additive rule without decay: all past tokens keep their weight."""

    display_name = "linear attention"
    Options = LinearAttentionOptions
    options: LinearAttentionOptions

    def _build_parameters(self) -> None:
        self.uses_normalizer = self.options.normalizer
        self.feature_map_q = FEATURE_MAPS[self.options.feature_map](self.head_k_dim)
        if not self.options.tie_feature_map_qk:
            self.feature_map_k = FEATURE_MAPS[self.options.feature_map](self.head_k_dim)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.feature_map_q.reset_parameters()
        if not self.options.tie_feature_map_qk:
            self.feature_map_k.reset_parameters()

    def key_dim(self) -> int:
        return self.feature_map_q.width

    def compute_gates(self, x: Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        of_keys = self.feature_map_q if self.options.tie_feature_map_qk else self.feature_map_k
        return replace(inputs, q=self.feature_map_q(inputs.q), k=of_keys(inputs.k))

    def normalizer(self, total: Tensor) -> Tensor:
        return total.clamp_min(1e-4)
