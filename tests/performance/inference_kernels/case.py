"""An operation that a kernel for inference computes, and the implementations of it that are compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int


SMOLLM2_135M = Shape(576, 9, 3, 64, 1536, 49152)
TINY = Shape(48, 3, 1, 16, 80, 3000)


@dataclass(frozen=True, slots=True)
class Setting:
    """Where operations run, at which shape, and which packages compute them besides torch."""

    shape: Shape
    device: torch.device
    dtype: torch.dtype
    ours: bool
    fla: bool

    def draw(self, *size: int) -> Tensor:
        """Standard normal values in the dtype of the setting."""
        return torch.randn(*size, device=self.device, dtype=self.dtype)

    def index(self, values: Sequence[int] | range) -> Tensor:
        """Values as int64 on the device."""
        return torch.tensor(list(values), device=self.device)


@dataclass(frozen=True, slots=True)
class Way:
    """One implementation of an operation."""

    name: str
    call: Callable[[], Any]
    outputs: Callable[[Any], Sequence[Tensor]] = list
    """Results of a call as those of `Case.exact`; not timed."""


@dataclass(frozen=True, slots=True)
class Case:
    """An operation at one size; calls that write over states have states of their own."""

    operation: str
    exact: Callable[[], Sequence[Tensor]]
    """The right results, in float64; those of recurrences in float32."""
    ways: list[Way]
