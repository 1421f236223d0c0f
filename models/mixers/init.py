"""Initial values: gates that start as constants, and decays that start at fixed memory lengths."""

import math

import torch
from torch import Tensor, nn
from transformers import initialization as init

from evalsuite.models.mixers.layers import LowRankLinear

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


def initial_decay(num_heads: int) -> Tensor:
    """Initial decay per head and token, from .88 in the first head to .999 in the last: [H], float64.

    Evenly spaced in log(1 − decay), so that memory lengths range from 8 to 1,000 tokens.
    """
    return 1 - torch.logspace(math.log10(0.12), math.log10(0.001), num_heads, dtype=torch.float64)


def inverse_softplus(y: Tensor) -> Tensor:
    """The x with softplus(x) = y > 0, exact for small y."""
    return y + torch.log(-torch.expm1(-y))
