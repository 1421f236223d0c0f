"""Gates of recurrent mixers: decays and write strengths from the logits of projections."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from evalsuite.models.ops.dispatch import Draw, Kernel, op
from evalsuite.models.ops.gates.per_head_linear import PerHeadLinear, project_together
from evalsuite.models.ops.numerics import upcast_fp32


def input_scale(log_decay: Tensor) -> Tensor:
    """√(1 − α²): with inputs of this scale a decaying sum of uncorrelated terms keeps a constant norm."""
    # The slope of the square root is infinite at zero, which a decay of exactly one would reach.
    return (-torch.expm1(2 * log_decay)).clamp_min(1e-8).sqrt()


@op(training=Kernel(module="gates.training", where=lambda logits, *_: logits.requires_grad))
def gla_gate_and_scale(logits: Tensor, k: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Gate of GLA: log α = logsigmoid(logits) / temperature in float32, and √(1 − α²) k; all [B, T, H, D]."""
    log_decay = functional.logsigmoid(upcast_fp32(logits)) / temperature
    return log_decay, k * input_scale(log_decay).to(k.dtype)


def _samples(draw: Draw) -> Iterator[tuple[Any, ...]]:
    a, b = draw(2, 3, 18).split(9, -1)
    yield a, b, draw(9), draw(9), 2.0


@op(inference=Kernel(module="gates.inference", samples=_samples))
def gates_of_logits(
    a: Tensor, b: Tensor, bias: Tensor | None, rate: Tensor, most: float
) -> tuple[Tensor, Tensor]:
    """`delta_gates` of logits a (that includes its bias if that is None) and b [B, T, H], in rows apart."""
    logits = upcast_fp32(a) if bias is None else upcast_fp32(a) + upcast_fp32(bias)
    beta = torch.sigmoid(upcast_fp32(b))
    return -upcast_fp32(rate).exp() * functional.softplus(logits), beta if most == 1 else most * beta


def delta_gates(
    x: Tensor, a_proj: PerHeadLinear, b_proj: PerHeadLinear, rate: Tensor, most: float
) -> tuple[Tensor, Tensor]:
    """Gates of Gated DeltaNet: log α = −exp(rate) · softplus(a) and β = most · sigmoid(b) (arXiv 2412.06464).

    Args:
        x: the layer's input [B, T, hidden].
        a_proj, b_proj: projections to the logits a and b [B, T, H], the second without bias.
        rate: [H].
        most: the largest β.

    Returns:
        Two tensors [B, T, H] in float32 or above.
    """
    if gates_of_logits.applies(x):
        a, b = project_together([a_proj, b_proj], x)
        return gates_of_logits(a, b, a_proj.bias, rate, most)
    return gates_of_logits.reference(a_proj(x), b_proj(x), None, rate, most)
