"""Hedgehog: linear attention whose feature map is learned and mimics softmax,
φ(x) = softmax([W x, −W x]) per head (arXiv 2402.04347, section 4.2)."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import initialization as init

from evalsuite.models.mixers.base import Mixer, Terms
from evalsuite.models.mixers.options import MixerOptions


@dataclass(frozen=True, kw_only=True)
class HedgehogOptions(MixerOptions):
    """Reads the teacher's rotated queries and keys as they are."""

    rotary: bool = True
    activation: Literal["silu", "none"] = "none"
    qk_norm: Literal["l2", "none"] = "none"


class Hedgehog(Mixer):
    """Nothing is forgotten; peaked features let a query single out a key."""

    name = "hedgehog"
    Options: ClassVar[type[MixerOptions]] = HedgehogOptions
    options: HedgehogOptions
    normalized = True

    def build(self) -> None:
        self.maps = nn.Parameter(torch.empty(2, self.heads, self.head_dim, self.head_dim))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        # The identity, scaled so that a product of features has the temperature of attention's exp.
        identity = torch.eye(self.head_dim, device=self.maps.device) * self.head_dim**-0.25
        init.copy_(self.maps, identity.to(self.maps.dtype).expand_as(self.maps))

    def key_width(self) -> int:
        return 2 * self.head_dim

    def gates(self, x: Tensor, terms: Terms) -> Terms:
        return replace(terms, q=self._features(terms.q, 0), k=self._features(terms.k, 1))

    def _features(self, x: Tensor, which: int) -> Tensor:
        mapped = torch.einsum("bthd,hde->bthe", x, self.maps[which].to(x.dtype))
        return torch.cat([mapped, -mapped], -1).softmax(-1)

    def denominator(self, total: Tensor) -> Tensor | None:
        return total.clamp_min(1e-6)
