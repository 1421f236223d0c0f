"""Norms over the last axis: RMSNorm, also of a sum, and L2 norm."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from evalsuite.models.ops.dispatch import Draw, Kernel, op
from evalsuite.models.ops.numerics import upcast_fp32


def _samples(draw: Draw) -> Iterator[tuple[Any, ...]]:
    yield draw(3, 5, 160), draw(160), 1e-5, draw(3, 5, 160)
    yield draw(2, 3, 80), draw(80), 1e-6


def _alike(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> bool:
    # Under autocast the residual stream is wider than what layers add to it.
    return residual is None or residual.dtype == x.dtype


@op(
    training=Kernel(module="training", where=_alike),
    inference=Kernel(module="inference", where=_alike, samples=_samples),
)
def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """RMSNorm of s = x + residual: s / √(mean s² + eps) · weight, rounded before the gain as in Llama.

    Args:
        x, residual: [..., D]; without a residual the sum is x. Kernels take both in one dtype.
        weight: gain [D].
        eps: added to the mean square.

    Returns:
        The norm, and the sum; the gradients of both are added in one kernel.
    """
    hidden = x if residual is None else x + residual
    exact = upcast_fp32(hidden)
    exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps)
    return weight.to(hidden.dtype) * exact.to(hidden.dtype), hidden


def _pairs(draw: Draw) -> Iterator[tuple[Any, ...]]:
    yield draw(2, 3, 80), draw(2, 1, 80)
    yield draw(2, 3, 80), draw(2, 3, 16)


@op(
    # fla's kernel autotunes per number of tokens.
    training=Kernel(module="training", where=lambda x, *_: x.shape[1] > 1 and torch.is_grad_enabled()),
    inference=Kernel(module="inference", samples=_pairs),
)
def l2_norm(*parts: Tensor) -> tuple[Tensor, ...]:
    """Scale the last axis of each tensor [B, T, ..., D] to length one; zero vectors stay zero."""
    squares = [upcast_fp32(x).square().sum(-1, keepdim=True) for x in parts]
    return tuple(x * torch.rsqrt(sum + 1e-6).to(x.dtype) for x, sum in zip(parts, squares, strict=True))
