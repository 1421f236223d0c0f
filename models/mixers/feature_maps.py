"""Feature maps φ of linear attention, by fla's names. Each maps [B, T, H, D] to [B, T, H, F]."""

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

FeatureMapName = Literal[
    "elu", "relu", "exp", "softmax", "identity", "elementwise_product", "dpfp", "t2r", "hedgehog"
]


class FeatureMap(nn.Module):
    """Base class: without parameters, and as wide as its input."""

    signed: ClassVar[bool] = False
    """Whether features can be negative, so that their sum is no normalizer."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim

    @property
    def width(self) -> int:
        """Number of features F."""
        return self.head_dim

    def reset_parameters(self) -> None:
        """Set the initial values that are not random."""


class Elu(FeatureMap):
    """elu(x) + 1 (arXiv 2006.16236)."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.elu(x) + 1


class Relu(FeatureMap):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x)


class Exp(FeatureMap):
    """exp(x / D^¼) with exponents of at most 15, above which bfloat16 sums lose all other tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp((x * self.head_dim**-0.25).clamp_max(15))


class Softmax(FeatureMap):
    """softmax(x) over the channels of a head (arXiv 1812.01243)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.softmax(-1)


class Identity(FeatureMap):
    """x."""

    signed = True

    def forward(self, x: Tensor) -> Tensor:
        return x


class ElementwiseProduct(FeatureMap):
    """(W₁ x + b₁) ⊙ (W₂ x + b₂), one map for all heads: fla's default (HadamardFeatureMap)."""

    signed = True

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim)
        self.layer1 = nn.Linear(head_dim, head_dim)
        self.layer2 = nn.Linear(head_dim, head_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer1(x) * self.layer2(x)


class DPFP(FeatureMap):
    """Products of r = [relu(x), relu(−x)] with r rolled by 1 … ν channels (arXiv 2102.11174, Eq. 37)."""

    nu = 4

    @property
    def width(self) -> int:
        return 2 * self.nu * self.head_dim

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.cat([x.relu(), (-x).relu()], -1)
        return torch.cat([parts * parts.roll(shift, -1) for shift in range(1, self.nu + 1)], -1)


class T2R(FeatureMap):
    """relu(W x), one map for all heads (arXiv 2103.13076)."""

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim)
        self.layer = nn.Linear(head_dim, head_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.layer(x))


class HedgehogMap(FeatureMap):
    """softmax([2 y, −2 y]) with y = W x + b, one map for all heads, W initially the identity (fla)."""

    def __init__(self, head_dim: int) -> None:
        super().__init__(head_dim)
        self.layer = nn.Linear(head_dim, head_dim)

    @property
    def width(self) -> int:
        return 2 * self.head_dim

    def reset_parameters(self) -> None:
        weight = self.layer.weight
        init.copy_(weight, torch.eye(self.head_dim, dtype=weight.dtype, device=weight.device))
        init.zeros_(self.layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        mapped = 2 * self.layer(x)
        return torch.cat([mapped, -mapped], -1).softmax(-1)


FEATURE_MAPS: dict[str, type[FeatureMap]] = {
    "elu": Elu,
    "relu": Relu,
    "exp": Exp,
    "softmax": Softmax,
    "identity": Identity,
    "elementwise_product": ElementwiseProduct,
    "dpfp": DPFP,
    "t2r": T2R,
    "hedgehog": HedgehogMap,
}
