"""Rotary position embedding."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from evalsuite.models.ops.dispatch import Draw, Kernel, op


def _rotates_all(x: Tensor, cos: Tensor, sin: Tensor) -> bool:
    return x.shape[-1] == cos.shape[-1]


def _samples(draw: Draw) -> Iterator[tuple[Any, ...]]:
    # Rows of positions of their own or of the same, of one token or of several.
    for tokens, angles in ((3, 2), (1, 2), (3, 1)):
        yield draw(2, tokens, 5, 16), draw(angles, tokens, 16), draw(angles, tokens, 16)


@op(
    training=Kernel(
        module="training",
        where=lambda x, cos, sin: torch.is_grad_enabled() and _rotates_all(x, cos, sin),
    ),
    inference=Kernel(module="inference", where=_rotates_all, samples=_samples),
)
def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding in Llama's half-split layout (arXiv 2104.09864).

    Args:
        x: [B, T, H, D]; channels beyond those of cos are not rotated.
        cos, sin: [1 or B, T, at most D].
    """
    if x.shape[-1] > (width := cos.shape[-1]):
        return torch.cat([rotary(x[..., :width], cos, sin), x[..., width:]], -1)
    first, second = x.chunk(2, -1)
    rotated = torch.cat([-second, first], -1)
    return x * cos.unsqueeze(2).to(x.dtype) + rotated * sin.unsqueeze(2).to(x.dtype)
