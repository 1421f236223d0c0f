"""Projection to one number per head."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


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
