"""Short causal depthwise convolutions of q, k and v, aware of pads, packed sequences and carried states.

The three convolutions have parameters of their own (named as in fla) and share one state: the last
kernel_size − 1 inputs of all channels, q | k | v.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from transformers import initialization as init

from evalsuite.models.ops.recurrence import OWN, StateAccess
from evalsuite.models.ops.short_conv import short_convolutions


class ShortConvolution(nn.Module):
    """Parameters of y_t = Σ_d w_d x_{t-d} per channel, optionally followed by SiLU.

    Initialised to the identity (all weight on the current token), so that the copied projection before it is
    not disturbed (arXiv 2603.26556, section 4.1). `apply_short_convolutions` computes it.
    """

    def __init__(self, channels: int, kernel_size: int, activation: Literal["silu"] | None) -> None:
        super().__init__()
        self.channels, self.kernel_size, self.activation = channels, kernel_size, activation
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel_size))

    def reset_parameters(self) -> None:
        """Set the identity."""
        identity = torch.zeros_like(self.weight)
        identity[..., -1] = 1.0
        init.copy_(self.weight, identity)


def apply_short_convolutions(
    convolutions: Sequence[ShortConvolution],
    parts: Sequence[Tensor],
    state: Tensor | None,
    token_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    access: StateAccess = OWN,
) -> tuple[Sequence[Tensor], Tensor]:
    """`short_convolutions` with these parameters, of which those with an activation come first."""
    weights = [convolution.weight for convolution in convolutions]
    activated = sum(convolution.activation is not None for convolution in convolutions)
    return short_convolutions(parts, weights, activated, state, token_mask, cu_seqlens, access)
