"""SwiGLU, silu(gate) · x, alone and followed by a projection (arXiv 2002.05202)."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.models.ops.dispatch import Draw, Kernel, op


def _alike(gate: Tensor, x: Tensor) -> bool:
    return gate.dtype == x.dtype


def _trains(gate: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    # Under autocast the weight is not of the product's type.
    return torch.is_grad_enabled() and gate.dtype == x.dtype == weight.dtype


def _samples(draw: Draw) -> Iterator[tuple[Any, ...]]:
    # Parts of one projection, and rows of their own.
    yield draw(3, 5, 160).split(80, -1)
    yield draw(3, 5, 160), draw(3, 5, 160)


@op(
    training=Kernel(module="training", where=_alike),
    inference=Kernel(module="inference", where=_alike, samples=_samples),
)
def swiglu(gate: Tensor, x: Tensor) -> Tensor:
    """silu(gate) · x, both [..., D]."""
    return x * functional.silu(gate)


@op(training=Kernel(module="training", where=_trains))
def swiglu_linear(gate: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(silu(gate) · x) weightᵀ + bias: [..., D] → [..., D_out].

    The kernel recomputes the product of gate and x in the backward pass instead of storing it.
    """
    return functional.linear(swiglu(gate, x), weight, bias)
