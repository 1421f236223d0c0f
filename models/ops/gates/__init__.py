"""Gates of recurrent mixers: decays and write strengths from the logits of projections."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from evalsuite.models.ops.dispatch import Draw, Kernel, op
from evalsuite.models.ops.numerics import upcast_fp32


class PerHeadLinear(nn.Linear):
    """Projection to one number per head.

    Tensor cores need rows of 8 half-precision numbers; a matrix product with 9 output columns falls back to
    pre-Hopper kernels. On CUDA the weight is therefore padded when there are enough tokens for the padding to
    pay off. Nothing is cached: writes through `Parameter.data` leave no trace that would invalidate a copy.
    """

    joined: Callable[[Tensor], Tensor | None] | None = None
    """Set by an engine that computes the output without bias together with those of other layers; its result
    is None where it cannot."""

    def forward(self, x: Tensor) -> Tensor:
        if not x.is_cuda or self.out_features % 16 == 0 or x.numel() < 1024 * self.in_features:
            return super().forward(x)
        return self.forward_padded(x)

    def forward_padded(self, x: Tensor) -> Tensor:
        """The same through a weight whose number of rows is a multiple of 16."""
        rows = self.out_features + -self.out_features % 16
        bias = None if self.bias is None else _pad_rows(self.bias, rows)
        return functional.linear(x, _pad_rows(self.weight, rows), bias)[..., : self.out_features]


def project_together(layers: Sequence[PerHeadLinear], x: Tensor) -> list[Tensor]:
    """Outputs of projections of x [..., D], without their biases, as views of one matrix product.

    For passes without gradients: the rows of all weights are joined and padded by one kernel. Not cached, as
    in `PerHeadLinear`.
    """
    outputs = (layer.joined(x) for layer in layers if layer.joined is not None)
    joined = [output for output in outputs if output is not None]
    if len(joined) == len(layers):
        return joined
    sizes = [layer.out_features for layer in layers]
    rows = sum(sizes) + -sum(sizes) % 16
    weight = torch.cat([layer.weight for layer in layers] * -(-rows // sum(sizes)))[:rows]
    return list(functional.linear(x, weight)[..., : sum(sizes)].split(sizes, -1))


def _pad_rows(x: Tensor, rows: int) -> Tensor:
    """x [N, …] with further rows, up to `rows`: zeros, or without gradients x again."""
    if torch.is_grad_enabled():
        return functional.pad(x, [0, 0] * (x.dim() - 1) + [0, rows - len(x)])
    # One kernel; zeros take another to fill them in.
    return torch.cat([x] * -(-rows // len(x)))[:rows]


def input_scale(log_decay: Tensor) -> Tensor:
    """√(1 − α²): with inputs of this scale a decaying sum of uncorrelated terms keeps a constant norm."""
    # The slope of the square root is infinite at zero, which a decay of exactly one would reach.
    return (-torch.expm1(2 * log_decay)).clamp_min(1e-8).sqrt()


@op(training=Kernel(module="training", where=lambda logits, *_: logits.requires_grad))
def gla_gate_and_scale(logits: Tensor, k: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Gate of GLA: log α = logsigmoid(logits) / temperature in float32, and √(1 − α²) k; all [B, T, H, D]."""
    log_decay = functional.logsigmoid(upcast_fp32(logits)) / temperature
    return log_decay, k * input_scale(log_decay).to(k.dtype)


def _samples(draw: Draw) -> Iterator[tuple[Any, ...]]:
    a, b = draw(2, 3, 18).split(9, -1)
    yield a, b, draw(9), draw(9), 2.0


@op(inference=Kernel(module="inference", samples=_samples))
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
