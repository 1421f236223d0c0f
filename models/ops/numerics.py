"""Precision, sizes of blocks, and tensors whose rows lie apart, as those of joined projections do."""

import torch
from torch import Tensor

NO_WINDOW = 2**30
"""In a kernel, the number of latest keys that stands for all."""


def upcast_fp32(x: Tensor) -> Tensor:
    """Cast to float32, the precision of all gates and norms; float64 stays."""
    return x if x.dtype == torch.float64 else x.float()


def soft_capped(x: Tensor, cap: float | None) -> Tensor:
    """cap · tanh(x / cap), for logits and attention scores; x itself without a cap."""
    return x if cap is None else cap * torch.tanh(x / cap)


def next_power_of_2(size: int) -> int:
    """Smallest power of two that is at least `size`."""
    return 1 << max(size - 1, 0).bit_length()


def as_rows(x: Tensor) -> tuple[Tensor, int]:
    """x [..., D] and the distance of its rows, in elements; a copy if there is more than one distance."""
    *sizes, width = x.shape
    if x.is_contiguous():
        return x, width
    *strides, step = x.stride()
    distance = expected = None
    while sizes:
        size, stride = sizes.pop(), strides.pop()
        if size == 1:
            continue
        if distance is None:
            distance = expected = stride
        if stride != expected:
            return x.contiguous(), width
        expected *= size
    if step != 1:
        return x.contiguous(), width
    return x, width if distance is None else distance


def as_states(x: Tensor, apart: bool, written: bool) -> Tensor:
    """States [S, …], each contiguous, and next to each other unless they may lie apart.

    Raises:
        ValueError: they would have to be copied, and are written in place.
    """
    if x.is_contiguous() or (apart and x[:1].is_contiguous()):
        return x
    if written:
        raise ValueError(f"states of strides {x.stride()} cannot be written in place")
    return x.contiguous()
