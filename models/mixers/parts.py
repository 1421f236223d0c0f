"""What mixers are put together from: norms, projections, gates that start as constants, rotary, decays."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import initialization as init

from evalsuite.models.recurrence import using_fla


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last dimension, computed in float32 as the teachers do."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        exact = wide(x)
        exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.eps)
        return self.weight.to(x.dtype) * exact.to(x.dtype)


class PerHead(nn.Linear):
    """A projection to one number per head.

    Tensor cores take rows of 8 half-precision numbers; a product nine wide falls back to kernels from before
    Hopper. On CUDA the weight is therefore widened with zeros, where there are enough tokens to gain by it.
    """

    def forward(self, x: Tensor) -> Tensor:
        spare = -self.out_features % 16
        if not x.is_cuda or not spare or x.numel() < 1024 * self.in_features:
            return super().forward(x)
        bias = None if self.bias is None else functional.pad(self.bias, [0, spare])
        wide_out = functional.linear(x, functional.pad(self.weight, [0, 0, 0, spare]), bias)
        return wide_out[..., : self.out_features]


class LowRank(nn.Module):
    """A projection through a narrow middle, with a bias at the end."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.up(self.down(x))
        return out


SILU_ONE = 1.2784645
"""silu(1.2784645) = 1."""
SIGMOID_OPEN = 4.0
"""sigmoid(4) = 0.98; a sigmoid gate cannot be the identity."""


def projection(inputs: int, outputs: int, rank: int) -> nn.Module:
    """A linear layer with bias, of full rank if `rank` is 0."""
    return LowRank(inputs, outputs, rank) if rank else nn.Linear(inputs, outputs)


def start_constant(layer: nn.Module, value: float | Tensor) -> None:
    """Make a `projection` start as a constant: no weight, all bias."""
    last = layer.up if isinstance(layer, LowRank) else layer
    assert isinstance(last, nn.Linear)
    init.zeros_(last.weight)
    init.copy_(last.bias, torch.as_tensor(value, dtype=last.bias.dtype).expand(last.bias.shape))


def wide(x: Tensor) -> Tensor:
    """At least float32, in which gates are computed whatever the activations are."""
    return x if x.dtype == torch.float64 else x.float()


def gated(gate: Tensor, x: Tensor) -> Tensor:
    """silu(gate) · x, for long inputs on CUDA in one pass."""
    if x.shape[1] > 1 and gate.dtype == x.dtype and using_fla(x):
        from fla.modules.activations import swiglu

        fused: Tensor = swiglu(gate, x)
        return fused
    return x * functional.silu(gate)


def unit(x: Tensor) -> Tensor:
    """Scale the last dimension to length one; a vector of zeros stays zero."""
    if x.is_cuda and not torch.is_grad_enabled():
        # fla's kernel is tuned anew for other numbers of tokens, which an engine has in every batch.
        width = x.shape[-1]
        return functional.rms_norm(x, (width,), eps=1e-6 / width) * width**-0.5
    if x.shape[1] > 1 and using_fla(x):
        from fla.modules.norm.l2norm import l2norm

        fused: Tensor = l2norm(x)
        return fused
    return x * torch.rsqrt(wide(x).square().sum(-1, keepdim=True) + 1e-6).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding in the half-split layout of Llama; x [B, T, H, D], cos and sin [B, T, D]."""
    if x.requires_grad and using_fla(x):
        from evalsuite.models.mixers.kernels import rotary

        return rotary(x, cos, sin)
    first, second = x.chunk(2, -1)
    turned = torch.cat([-second, first], -1)
    return x * cos.unsqueeze(2).to(x.dtype) + turned * sin.unsqueeze(2).to(x.dtype)


class _Ratio(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, divisor: Tensor) -> Tensor:
        out = values / divisor
        ctx.save_for_backward(divisor, out)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> Any:
        divisor, out = ctx.saved_tensors
        d_values = d_out / divisor
        return d_values, -(d_values * out).sum(-1, keepdim=True)


def ratio(values: Tensor, divisor: Tensor) -> Tensor:
    """values [..., V] / divisor [..., 1]; torch's own gradient takes three more passes over the values."""
    out: Tensor = _Ratio.apply(values, divisor)
    return out


def write_size(log_decay: Tensor) -> Tensor:
    """√(1 − α²): writes of this size keep a decaying sum of unlike terms at constant length."""
    # The square root has no slope at zero, which a decay of exactly one would reach.
    return (-torch.expm1(2 * log_decay)).clamp_min(1e-8).sqrt()


def retention(heads: int) -> Tensor:
    """Decay per head and token to start from: .88 for the first head to .999 for the last, [H].

    Evenly spaced in log(1 − decay), so that memory lengths run from 8 to 1,000 tokens.
    """
    return 1 - torch.logspace(math.log10(0.12), math.log10(0.001), heads, dtype=torch.float64)
