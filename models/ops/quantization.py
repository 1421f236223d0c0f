"""Rounding of tensors to the grids of low-precision formats, and back: simulated quantization."""

import torch
from torch import Tensor

from evalsuite.foundation import ConfigError

KINDS = ("int8", "fp8", "bf16")
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
        kind: one of `KINDS`.
        dim: dimension along which a scale is shared.

    Returns:
        A new tensor in the shape and dtype of `x`, computed in float32.

    Raises:
        ConfigError: an unknown kind.
    """
    exact = x.float()
    if kind == "int8":
        rounded = round_symmetric(exact, 127, dim)
    elif kind == "fp8":
        scale = exact.abs().amax(dim, keepdim=True) / _LARGEST_FP8
        levels = (exact / _nonzero(scale)).clamp(-_LARGEST_FP8, _LARGEST_FP8)
        rounded = levels.to(torch.float8_e4m3fn).float() * scale
    elif kind == "bf16":
        rounded = exact.to(torch.bfloat16).float()
    else:
        raise ConfigError(f"kind = '{kind}': must be one of {', '.join(KINDS)}")
    return rounded.to(x.dtype)


def _nonzero(scale: Tensor) -> Tensor:
    """The scale, or 1 where it is zero or has underflowed."""
    return torch.where(scale == 0, torch.ones_like(scale), scale)
