"""Hedgehog: linear attention with a learned feature map that mimics softmax,
φ(x) = softmax([W x, −W x]) per head (arXiv 2402.04347, section 4.2)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import initialization as init

from evalsuite.models.mixers.base import RecurrentMixer
from evalsuite.models.mixers.feature_maps import HedgehogMap
from evalsuite.models.mixers.interface import MIXERS
from evalsuite.models.mixers.options import MixerOptions
from evalsuite.models.ops.recurrence import RecurrenceInputs


@dataclass(frozen=True, kw_only=True)
class HedgehogOptions(MixerOptions):
    """Uses the teacher's rotated queries and keys unchanged."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # fla's HedgehogFeatureMap in normalized linear attention, on rotated q and k as in the paper.
        "native": {"short_conv": 0, "output_gate": "none", "scale": "head_dim", "shared_feature_map": True},
    }
    shared_feature_map: bool = False
    """One map for all heads, φ(x) = softmax([2 (W x + b), −2 (W x + b)]), as in fla."""
    rotary: bool = True
    activation: Literal["silu", "none"] = "none"
    qk_norm: Literal["l2", "none"] = "none"


@MIXERS.register("hedgehog")
class Hedgehog(RecurrentMixer):
    """No decay; peaked features let a query single out a key."""

    display_name = "Hedgehog"
    Options = HedgehogOptions
    options: HedgehogOptions
    matrix_parameters = ("feature_proj",)
    uses_normalizer = True

    def _build_parameters(self) -> None:
        if self.options.shared_feature_map:
            self.feature_map_q = HedgehogMap(self.head_k_dim)
            self.feature_map_k = HedgehogMap(self.head_k_dim)
            return
        # Feature maps W of queries [0] and keys [1].
        self.feature_proj = nn.Parameter(torch.empty(2, self.num_heads, self.head_k_dim, self.head_k_dim))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.options.shared_feature_map:
            self.feature_map_q.reset_parameters()
            self.feature_map_k.reset_parameters()
            return
        # The identity, scaled so that an inner product of features has the temperature of attention's exp.
        identity = torch.eye(self.head_k_dim, device=self.feature_proj.device) * self.head_k_dim**-0.25
        init.copy_(self.feature_proj, identity.to(self.feature_proj.dtype).expand_as(self.feature_proj))

    def key_dim(self) -> int:
        return 2 * self.head_k_dim

    def compute_gates(self, x: Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        if self.options.shared_feature_map:
            return replace(inputs, q=self.feature_map_q(inputs.q), k=self.feature_map_k(inputs.k))
        return replace(inputs, q=self._features(inputs.q, 0), k=self._features(inputs.k, 1))

    def _features(self, x: Tensor, which: int) -> Tensor:
        mapped = torch.einsum("bthd,hde->bthe", x, self.feature_proj[which].to(x.dtype))
        return torch.cat([mapped, -mapped], -1).softmax(-1)

    def normalizer(self, total: Tensor) -> Tensor:
        return total.clamp_min(1e-6)
