"""Decays that start at fixed memory lengths, or as in the authors' code."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import initialization as init

from evalsuite.foundation import ConfigError
from evalsuite.models.mixers.layers import init_constant_, output_layer
from evalsuite.models.mixers.options import MixerOptions


@dataclass(frozen=True, kw_only=True)
class DecayOptions(MixerOptions):
    """Options of mixers whose state decays."""

    min_decay: float = 0.88
    """Initial decay per token of the first head."""
    max_decay: float = 0.999
    """Initial decay of the last head. Heads between are evenly spaced in log(1 − decay); memory lengths range
    from 8 to 1,000 tokens by default."""
    decay_init: Literal["range", "native"] = "range"
    """Initial decay: a constant per head, from `min_decay` to `max_decay`, or as in the authors' code."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ranged = (self.min_decay, self.max_decay) != (DecayOptions.min_decay, DecayOptions.max_decay)
        if ranged and self.decay_init != "range":
            raise ConfigError(
                f"min_decay = {self.min_decay}, max_decay = {self.max_decay} have no effect with "
                f"decay_init = '{self.decay_init}'; set decay_init: range"
            )
        if not 0 < self.min_decay <= self.max_decay < 1:
            raise ConfigError(
                f"min_decay = {self.min_decay}, max_decay = {self.max_decay}: "
                "need 0 < min_decay <= max_decay < 1"
            )


def initial_decay(num_heads: int, options: DecayOptions) -> Tensor:
    """Initial decay per head and token, from `min_decay` to `max_decay`: [H], float64.

    Evenly spaced in log(1 − decay).
    """
    # Rounded, because 1 - 0.999 is not the number nearest to 0.001.
    first, last = (math.log10(round(1 - decay, 12)) for decay in (options.min_decay, options.max_decay))
    return 1 - torch.logspace(first, last, num_heads, dtype=torch.float64)


def init_decay_(
    A_log: Tensor, projection: nn.Module, options: DecayOptions, *, smallest: float = 0, channels: int = 1
) -> None:
    """Set the initial decay log α = −exp(A_log) · softplus(projection(x)) of each head, in place.

    By default α is constant: A = 1, and the projection's weight is zero. With `decay_init: native` decay
    rates A ~ U(smallest, 16) and step sizes softplus(bias), log-uniform in [0.001, 0.1], are drawn as in the
    code of Mamba-2, Gated DeltaNet and Kimi Linear.

    Args:
        A_log: [H].
        projection: to H · channels step sizes.
        channels: adjacent outputs of a head.
    """
    if options.decay_init == "range":
        init.zeros_(A_log)
        start = inverse_softplus(-initial_decay(len(A_log), options).log())
        init_constant_(projection, start.repeat_interleave(channels))
        return
    dt_bias = output_layer(projection).bias
    rate = torch.empty_like(A_log, dtype=torch.float64).uniform_(smallest, 16).clamp_min(1e-4)
    init.copy_(A_log, rate.log().to(A_log.dtype))
    exponent = torch.empty_like(dt_bias, dtype=torch.float64).uniform_(-3, -1)
    init.copy_(dt_bias, inverse_softplus(10.0**exponent).to(dt_bias.dtype))


def inverse_softplus(y: Tensor) -> Tensor:
    """The x with softplus(x) = y > 0, exact for small y."""
    return y + torch.log(-torch.expm1(-y))
