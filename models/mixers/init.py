"""Initial values: gates that start as constants, and decays that start at fixed memory lengths."""

import math

import torch
from torch import Tensor, nn
from transformers import initialization as init

from evalsuite.models.mixers.layers import LowRankLinear
from evalsuite.models.mixers.options import DecayOptions

SILU_INVERSE_OF_ONE = 1.2784645
"""silu(1.2784645) = 1."""
SIGMOID_OPEN_LOGIT = 4.0
"""sigmoid(4) = 0.98; a sigmoid gate cannot be the identity."""


def init_constant_(layer: nn.Module, value: float | Tensor) -> None:
    """Make the output of a `make_projection` layer constant: zero weight, bias set to `value`."""
    last = layer[1] if isinstance(layer, LowRankLinear) else layer
    assert isinstance(last, nn.Linear)
    init.zeros_(last.weight)
    init.copy_(last.bias, torch.as_tensor(value, dtype=last.bias.dtype).expand(last.bias.shape))


def initial_decay(num_heads: int, options: DecayOptions) -> Tensor:
    """Initial decay per head and token, from `min_decay` to `max_decay`: [H], float64.

    Evenly spaced in log(1 − decay).
    """
    # Rounded, because 1 - 0.999 is not the number nearest to 0.001.
    first, last = (math.log10(round(1 - decay, 12)) for decay in (options.min_decay, options.max_decay))
    return 1 - torch.logspace(first, last, num_heads, dtype=torch.float64)


def mamba_decay_(A_log: Tensor, dt_bias: Tensor, smallest: float) -> None:
    """Draw decay rates A ~ U(smallest, 16) and step sizes softplus(dt_bias), log-uniform in [0.001, 0.1].

    In place; as in the code of Mamba-2, Gated DeltaNet and Kimi Linear.
    """
    rate = torch.empty_like(A_log, dtype=torch.float64).uniform_(smallest, 16).clamp_min(1e-4)
    init.copy_(A_log, rate.log().to(A_log.dtype))
    exponent = torch.empty_like(dt_bias, dtype=torch.float64).uniform_(-3, -1)
    init.copy_(dt_bias, inverse_softplus(10.0**exponent).to(dt_bias.dtype))


def inverse_softplus(y: Tensor) -> Tensor:
    """The x with softplus(x) = y > 0, exact for small y."""
    return y + torch.log(-torch.expm1(-y))
