"""What the Triton kernels compute, in plain torch: differentiable anywhere, and the oracle of their tests."""

import torch
from torch import Tensor
from torch.nn import functional


def upcast_fp32(x: Tensor) -> Tensor:
    """Cast to float32, the precision of all gates and norms; float64 stays."""
    return x if x.dtype == torch.float64 else x.float()


def rms_norm(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """RMSNorm of x + residual, rounded before the gain as in transformers; and the sum."""
    hidden = x if residual is None else x + residual
    exact = upcast_fp32(hidden)
    exact = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + eps)
    return weight.to(hidden.dtype) * exact.to(hidden.dtype), hidden


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding in Llama's half-split layout; x [B, T, H, D], cos and sin [1 or B, T, D]."""
    first, second = x.chunk(2, -1)
    rotated = torch.cat([-second, first], -1)
    return x * cos.unsqueeze(2).to(x.dtype) + rotated * sin.unsqueeze(2).to(x.dtype)


def swiglu(gate: Tensor, x: Tensor) -> Tensor:
    """silu(gate) · x."""
    return x * functional.silu(gate)


def short_conv(x: Tensor, weight: Tensor, *, silu: bool) -> Tensor:
    """Causal depthwise convolution of full rows x [B, T, C] by weight [C, 4]."""
    padded = functional.pad(x.transpose(1, 2), [weight.shape[1] - 1, 0])
    y = functional.conv1d(padded, weight[:, None], groups=weight.shape[0]).transpose(1, 2)
    return functional.silu(y) if silu else y


def input_scale(log_decay: Tensor) -> Tensor:
    """√(1 − α²): with inputs of this scale a decaying sum of uncorrelated terms keeps a constant norm."""
    # The slope of the square root is infinite at zero, which a decay of exactly one would reach.
    return (-torch.expm1(2 * log_decay)).clamp_min(1e-8).sqrt()


def gla_gate_and_scale(logits: Tensor, k: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """log α = logsigmoid(logits) / temperature in float32, and √(1 − α²) k; all [B, T, H, D]."""
    log_decay = functional.logsigmoid(upcast_fp32(logits)) / temperature
    return log_decay, k * input_scale(log_decay).to(k.dtype)


def squared_distance(student: Tensor, teacher: Tensor) -> tuple[Tensor, Tensor]:
    """Σ ‖s − t‖² and Σ ‖t‖² over all vectors [..., D], in fp32 or above."""
    dtype = torch.promote_types(student.dtype, torch.float32)
    t = teacher.to(dtype)
    return (student.to(dtype) - t).square().sum(-1).sum(), t.square().sum(-1).sum()
