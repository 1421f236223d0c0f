"""ReBased: linear attention with the kernel (φ(q) · φ(k))², φ(x) = γ ⊙ norm(x) + β (arXiv 2402.10644)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.base import RecurrentMixer
from evalsuite.models.mixers.interface import MIXERS
from evalsuite.models.mixers.options import MixerOptions
from evalsuite.models.ops.recurrence import RecurrenceInputs


@dataclass(frozen=True, kw_only=True)
class ReBasedOptions(MixerOptions):
    """The square makes all weights positive and the state wide, so heads are projected to fewer channels."""

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # fla's ReBasedLinearAttention after a projection of the teacher's queries and keys to `feature_dim`
        # channels; its own queries and keys have that width themselves (feature_proj: false, expand_k).
        "native": {
            "rotary": False,
            "short_conv": 0,
            "output_gate": "none",
            "tie_feature_map_qk": True,
            "floor": 1e-5,
            "add_floor": True,
        },
    }
    rotary: bool = True
    activation: Literal["silu", "none"] = "none"
    qk_norm: Literal["l2", "none"] = "none"
    feature_dim: int = 16
    """Width of q and k before squaring; the state's key width is feature_dim · (feature_dim + 1) / 2."""
    feature_proj: bool = True
    """Project each head to `feature_dim` channels; without it the heads must have that width."""
    tie_feature_map_qk: bool = False
    """One γ and β for queries and keys."""
    add_floor: bool = False
    """Add `floor` to the divisor instead of raising the divisor to it."""
    floor: float = 0.25
    """Smallest divisor of the output; each token weighs about one. With the paper's 1e-6, the first tokens of
    a text are divided by rounding errors where query and key are orthogonal: as a sum over features in
    bfloat16, a weight of zero is anything within ±0.02."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.floor <= 1:
            raise ConfigError(f"floor = {self.floor}: must be above 0 and at most 1")
        if not 1 <= self.feature_dim <= 22:
            raise ConfigError(f"feature_dim = {self.feature_dim}: must be 1 to 22 (a state of 253 rows)")


@MIXERS.register("rebased")
class ReBased(RecurrentMixer):
    """No decay; weights are squares, so a query ignores the keys orthogonal to it."""

    display_name = "ReBased"
    Options = ReBasedOptions
    options: ReBasedOptions
    matrix_parameters = ("feature_proj",)
    uses_normalizer = True

    def _build_parameters(self) -> None:
        width = self.options.feature_dim
        if self.options.feature_proj:
            self.feature_proj = nn.Parameter(torch.empty(self.num_heads, self.head_k_dim, width))
        elif self.head_k_dim != width:
            raise ConfigError(
                f"layer {self.layer_idx}: feature_proj = False needs heads of feature_dim = {width} "
                f"channels, not {self.head_k_dim}; set expand_k: {width / self.head_dim:g}"
            )
        # Gain and bias of the norm for queries [0] and keys [-1].
        maps = 1 if self.options.tie_feature_map_qk else 2
        self.gamma = nn.Parameter(torch.empty(maps, width))
        self.beta = nn.Parameter(torch.empty(maps, width))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.options.feature_proj:
            # One orthonormal projection for both q and k preserves their inner products best.
            drawn = [
                nn.init.orthogonal_(torch.empty(self.feature_proj.shape[1:], device=self.feature_proj.device))
                for _ in range(self.num_heads)
            ]
            init.copy_(self.feature_proj, torch.stack(drawn).to(self.feature_proj.dtype))
        init.ones_(self.gamma)
        init.zeros_(self.beta)

    def key_dim(self) -> int:
        width = self.options.feature_dim
        return width * (width + 1) // 2

    def compute_gates(self, x: Tensor, inputs: RecurrenceInputs) -> RecurrenceInputs:
        return replace(inputs, q=self._features(inputs.q, 0), k=self._features(inputs.k, -1))

    def _features(self, x: Tensor, which: int) -> Tensor:
        """[B, T, H, D] → all products of two channels, so that an inner product of features is a square."""
        width = self.options.feature_dim
        if self.options.feature_proj:
            x = torch.einsum("bthd,hdf->bthf", x, self.feature_proj.to(x.dtype))
        small = functional.layer_norm(
            x, (width,), self.gamma[which].to(x.dtype), self.beta[which].to(x.dtype)
        )
        first, second = torch.triu_indices(width, width, device=x.device)
        # √2 for products that occur twice in the full outer product; √width keeps the kernel near one.
        weight = torch.where(first == second, 1.0, 2**0.5).to(x.dtype) / width**0.5
        # Channels are selected by a matrix product: the backward pass of indexing is a slow scatter.
        pick = torch.eye(width, dtype=small.dtype, device=x.device)
        return (small @ pick[:, first]) * (small @ pick[:, second]) * weight

    def normalizer(self, total: Tensor) -> Tensor:
        floor = self.options.floor
        return total + floor if self.options.add_floor else total.clamp_min(floor)
