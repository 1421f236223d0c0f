"""Gated linear units, activation(gate) · x, alone and followed by a projection (arXiv 2002.05202)."""

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.models.ops.dispatch import Draw, Kernel, op

Activation = Literal["silu", "gelu_tanh"]
"""Of the gate: that of SwiGLU, or that of GEGLU in its approximation by a hyperbolic tangent."""


def _alike(gate: Tensor, x: Tensor, activation: Activation = "silu") -> bool:
    return gate.dtype == x.dtype


def _trains(
    gate: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation = "silu"
) -> bool:
    # Under autocast the weight is not of the product's type.
    return torch.is_grad_enabled() and gate.dtype == x.dtype == weight.dtype


def _form(gate: Tensor, x: Tensor, activation: Activation = "silu") -> tuple[Activation]:
    return (activation,)


def _samples(draw: Draw, activation: Activation) -> Iterator[tuple[Any, ...]]:
    # Parts of one projection, and rows of their own.
    yield *draw(3, 5, 160).split(80, -1), activation
    yield draw(3, 5, 160), draw(3, 5, 160), activation


@op(
    training=Kernel(module="training", where=_alike),
    inference=Kernel(module="inference", where=_alike, form=_form, samples=_samples),
)
def glu(gate: Tensor, x: Tensor, activation: Activation = "silu") -> Tensor:
    """activation(gate) · x, both [..., D]."""
    gated = functional.silu(gate) if activation == "silu" else functional.gelu(gate, approximate="tanh")
    return x * gated


@op(training=Kernel(module="training", where=_trains))
def glu_linear(
    gate: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation = "silu"
) -> Tensor:
    """(activation(gate) · x) weightᵀ + bias: [..., D] → [..., D_out].

    The kernel recomputes the product of gate and x in the backward pass instead of storing it.
    """
    return functional.linear(glu(gate, x, activation), weight, bias)
