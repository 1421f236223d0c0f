"""Precision, and sizes of blocks."""

import torch
from torch import Tensor


def upcast_fp32(x: Tensor) -> Tensor:
    """Cast to float32, the precision of all gates and norms; float64 stays."""
    return x if x.dtype == torch.float64 else x.float()


def soft_capped(x: Tensor, cap: float | None) -> Tensor:
    """cap · tanh(x / cap), for logits and attention scores; x itself without a cap."""
    return x if cap is None else cap * torch.tanh(x / cap)


def next_power_of_2(size: int) -> int:
    """Smallest power of two that is at least `size`."""
    return 1 << max(size - 1, 0).bit_length()
