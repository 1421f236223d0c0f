"""MetaLA: HGRN2's recurrence with self-augmentation: each token also adds its own value, weighted by the
match of its query and key, o_t = S_tᵀ q_t + σ(q_t · (w ⊙ k_t)) v_t (arXiv 2411.10741, section 4), and decay
σ(W x)^{1/16} as in the authors' code."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import initialization as init

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.base import Convolve
from evalsuite.models.mixers.hgrn2 import HGRN2, HGRN2Options
from evalsuite.models.mixers.interface import MIXERS, MixerState
from evalsuite.models.mixers.layers import ShortConvolution
from evalsuite.models.ops.recurrence import RecurrenceInputs


@dataclass(frozen=True, kw_only=True)
class MetaLAOptions(HGRN2Options):
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        # The authors' layer; its queries and decays have half the width (expand_k: 0.5).
        "native": {
            "short_conv_input": True,
            "activation": "none",
            "qk_norm": "none",
            "output_norm": "group",
            "decay_init": "native",
        },
    }
    decay_temperature: float = 16.0
    short_conv_input: bool = False
    """Convolve the layer's input, followed by SiLU, instead of q, k and v."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.short_conv_input and not self.short_conv:
            raise ConfigError("short_conv_input = True needs a kernel size; set short_conv to 1 or more")


@MIXERS.register("metala")
class MetaLA(HGRN2):
    """No key projection, dynamic decay, self-augmentation."""

    display_name = "MetaLA"
    Options = MetaLAOptions
    options: MetaLAOptions

    def _build_parameters(self) -> None:
        super()._build_parameters()
        self.augment = nn.Parameter(torch.empty(self.num_heads, self.head_k_dim))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        init.zeros_(self.augment)

    @property
    def convolves_projections(self) -> bool:
        return super().convolves_projections and not self.options.short_conv_input

    def _build_convolutions(self) -> None:
        if not self.options.short_conv_input:
            super()._build_convolutions()
            return
        width = self.attention_shape.hidden_size
        self.conv1d = ShortConvolution(width, self.options.short_conv, silu=True)

    def _convolutions(self) -> tuple[ShortConvolution, ...]:
        return (self.conv1d,) if self.options.short_conv_input else super()._convolutions()

    def convolve_input(self, x: Tensor, convolve: Convolve) -> tuple[Tensor, MixerState]:
        if not self.options.short_conv_input:
            return x, {}
        (x,), state = convolve([x])
        return x, {"convolution": state}

    def skip(self, inputs: RecurrenceInputs) -> Tensor | None:
        return torch.sigmoid((inputs.q * self.augment.to(inputs.q.dtype) * inputs.k).sum(-1))
