"""Norms over the last axis: RMSNorm, also of a sum, and L2 norm."""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from evalsuite.models.ops.dispatch import Draw, Kernel, op
from evalsuite.models.ops.numerics import upcast_fp32

Gain = Literal["rounded_first", "rounded_last", "one_plus"]
"""How the weight multiplies x̂ = x / rms(x): w · round(x̂), round(w · x̂), or round((1 + w) · x̂)."""


def _form(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, gain: Gain = "rounded_first"
) -> tuple[Gain]:
    return (gain,)


def _samples(draw: Draw, gain: Gain) -> Iterator[tuple[Any, ...]]:
    yield draw(3, 5, 160), draw(160), 1e-5, draw(3, 5, 160), gain
    yield draw(2, 3, 80), draw(80), 1e-6, None, gain


def _alike(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, gain: Gain = "rounded_first"
) -> bool:
    # Under autocast the residual stream is wider than what layers add to it.
    return residual is None or residual.dtype == x.dtype


@op(
    training=Kernel(module="training", where=_alike),
    inference=Kernel(module="inference", where=_alike, form=_form, samples=_samples),
)
def rms_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None, gain: Gain = "rounded_first"
) -> tuple[Tensor, Tensor]:
    """RMSNorm of s = x + residual: s / √(mean s² + eps) · weight.

    Args:
        x, residual: [..., D]; without a residual the sum is x. Kernels take both in one dtype.
        weight: [D].
        eps: added to the mean square.
        gain: how the weight multiplies.

    Returns:
        The norm, and the sum; the gradients of both are added in one kernel.
    """
    hidden = x if residual is None else x + residual
    exact = upcast_fp32(hidden)
    exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps)
    if gain == "rounded_first":
        return weight.to(hidden.dtype) * exact.to(hidden.dtype), hidden
    factor = 1 + weight.to(exact.dtype) if gain == "one_plus" else weight
    return (exact * factor).to(hidden.dtype), hidden


def _sandwiches(draw: Draw, gain: Gain) -> Iterator[tuple[Any, ...]]:
    for following in (draw(160), None):
        yield draw(3, 5, 160), draw(160), 1e-5, draw(3, 5, 160), following, gain


@op(inference=Kernel(module="inference", form=lambda *arguments: arguments[-1:], samples=_sandwiches))
def sandwich_norm(
    x: Tensor, weight: Tensor, eps: float, residual: Tensor, following: Tensor | None, gain: Gain
) -> tuple[Tensor, Tensor]:
    """RMSNorm of s = residual + RMSNorm(x), as after each sublayer of Gemma 2 and 3 (arXiv 2408.00118).

    Args:
        x, residual: [..., D], in one dtype.
        weight: of the norm of x [D].
        eps: added to both mean squares.
        following: weight of the norm of s [D]; None: s is not normed.
        gain: how the weights multiply.

    Returns:
        The norm of s, and s.
    """
    added, _ = rms_norm(x, weight, eps, None, gain)
    if following is None:
        total = residual + added
        return total, total
    return rms_norm(added, following, eps, residual, gain)


def _queries_and_keys(draw: Draw, gain: Gain) -> Iterator[tuple[Any, ...]]:
    yield draw(2, 3, 4, 80), draw(2, 3, 2, 80), draw(80), draw(80), 1e-6, gain


@op(inference=Kernel(module="inference", form=lambda *arguments: arguments[-1:], samples=_queries_and_keys))
def qk_norm(
    q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float, gain: Gain
) -> tuple[Tensor, Tensor]:
    """RMSNorm of the queries and of the keys of each head (arXiv 2010.04245).

    Args:
        q: [B, T, H, D].
        k: [B, T, H / groups, D], of the same dtype.
        q_weight, k_weight: [D].
        eps: added to the mean squares.
        gain: how the weights multiply.
    """
    return rms_norm(q, q_weight, eps, None, gain)[0], rms_norm(k, k_weight, eps, None, gain)[0]


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
