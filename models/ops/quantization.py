"""Rounding of tensors to the grids of low-precision formats, and back: simulated quantization."""

from collections.abc import Callable

import torch
from torch import Tensor

from evalsuite.foundation import ConfigError

_LARGEST_FP8 = 448.0
"""Largest finite number of e4m3 (arXiv 2209.05433, Table 1)."""


def round_symmetric(x: Tensor, level: int, dim: int) -> Tensor:
    """Round to the nearest of 2 · `level` + 1 evenly spaced numbers about zero; ties go to the even one.

    Numbers along `dim` share the scale max|x| / `level`; the error is at most half of it. Zeros stay zeros.

    Args:
        x: float32 of any shape.
        level: largest integer level, such as 127 for int8.
        dim: dimension along which a scale is shared.
    """
    scale = x.abs().amax(dim, keepdim=True) / level
    return (x / _nonzero(scale)).round().clamp(-level, level) * scale


def quantize_dequantize(x: Tensor, kind: str, dim: int = -1) -> Tensor:
    """Round to the numbers that a format can hold.

    - `int8`: symmetric, 255 levels, as `round_symmetric`.
    - `fp8`: e4m3 (4 bits of exponent, 3 of mantissa) of x / scale, where numbers along `dim` share the scale
      max|x| / 448. The error is at most |x| / 16, or scale · 2^-10 where e4m3 is subnormal.
    - `bf16`: bfloat16, without a scale. The error is at most |x| / 256.

    Where a number is infinite or NaN, the result is not finite either.

    Args:
        x: floating point of any shape.
        kind: one of `FORMATS`.
        dim: dimension along which a scale is shared.

    Returns:
        A new tensor in the shape and dtype of `x`, computed in float32.

    Raises:
        ConfigError: an unknown kind.
    """
    if kind not in FORMATS:
        raise ConfigError(f"kind = '{kind}': must be one of {', '.join(FORMATS)}")
    return FORMATS[kind](x.float(), dim).to(x.dtype)


def _fp8(x: Tensor, dim: int) -> Tensor:
    scale = x.abs().amax(dim, keepdim=True) / _LARGEST_FP8
    levels = (x / _nonzero(scale)).clamp(-_LARGEST_FP8, _LARGEST_FP8)
    return levels.to(torch.float8_e4m3fn).float() * scale


FORMATS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "int8": lambda x, dim: round_symmetric(x, 127, dim),
    "fp8": _fp8,
    "bf16": lambda x, dim: x.to(torch.bfloat16).float(),
}
"""Format → rounds float32 numbers to it, with a scale along a dimension."""


def _nonzero(scale: Tensor) -> Tensor:
    """The scale, or 1 where it is zero or has underflowed."""
    return torch.where(scale == 0, torch.ones_like(scale), scale)
