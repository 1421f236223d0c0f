"""ReBased: linear attention with the kernel (φ(q) · φ(k))², φ(x) = γ ⊙ norm(x) + β (arXiv 2402.10644)."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.base import Mixer, Terms
from evalsuite.models.mixers.options import MixerOptions


@dataclass(frozen=True, kw_only=True)
class ReBasedOptions(MixerOptions):
    """The square makes every weight positive and the state wide, so heads are reduced first."""

    rotary: bool = True
    activation: Literal["silu", "none"] = "none"
    qk_norm: Literal["l2", "none"] = "none"
    feature_dim: int = 16
    """Width of q and k before squaring; the state's key width is feature_dim · (feature_dim + 1) / 2."""
    floor: float = 0.25
    """The least that outputs are divided by; each token weighs about one. The paper has 1e-6, with which the
    first tokens of a text are divided by rounding errors where their query and key are orthogonal: as a sum
    over features in bfloat16, a weight of zero is anything within ±0.02."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.floor <= 1:
            raise ConfigError(f"floor = {self.floor}: must be above 0 and at most 1")
        if not 1 <= self.feature_dim <= 22:
            raise ConfigError(f"feature_dim = {self.feature_dim}: must be 1 to 22 (a state of 253 rows)")


class ReBased(Mixer):
    """Nothing is forgotten; weights are squares, so a token can be ignored by being orthogonal."""

    name = "rebased"
    Options: ClassVar[type[MixerOptions]] = ReBasedOptions
    options: ReBasedOptions
    normalized = True

    def build(self) -> None:
        width = self.options.feature_dim
        self.reduce = nn.Parameter(torch.empty(self.heads, self.head_dim, width))
        self.gamma = nn.Parameter(torch.empty(2, width))
        self.beta = nn.Parameter(torch.empty(2, width))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        # The same orthonormal reduction for q and k keeps their inner products as well as it can.
        drawn = [
            nn.init.orthogonal_(torch.empty(self.reduce.shape[1:], device=self.reduce.device))
            for _ in range(self.heads)
        ]
        init.copy_(self.reduce, torch.stack(drawn).to(self.reduce.dtype))
        init.ones_(self.gamma)
        init.zeros_(self.beta)

    def key_width(self) -> int:
        width = self.options.feature_dim
        return width * (width + 1) // 2

    def gates(self, x: Tensor, terms: Terms) -> Terms:
        return replace(terms, q=self._features(terms.q, 0), k=self._features(terms.k, 1))

    def _features(self, x: Tensor, which: int) -> Tensor:
        """[B, T, H, D] → all products of two channels, so that an inner product of features is a square."""
        width = self.options.feature_dim
        small = torch.einsum("bthd,hdf->bthf", x, self.reduce.to(x.dtype))
        small = functional.layer_norm(
            small, (width,), self.gamma[which].to(x.dtype), self.beta[which].to(x.dtype)
        )
        first, second = torch.triu_indices(width, width, device=x.device)
        # √2 for products that the full outer product has twice; √width keeps the kernel near one.
        weight = torch.where(first == second, 1.0, 2**0.5).to(x.dtype) / width**0.5
        # Picking channels by a product of matrices: the gradient of an index is a slow scatter.
        pick = torch.eye(width, dtype=small.dtype, device=x.device)
        return (small @ pick[:, first]) * (small @ pick[:, second]) * weight

    def denominator(self, total: Tensor) -> Tensor | None:
        return total.clamp_min(self.options.floor)
