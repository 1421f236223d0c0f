"""Tensors whose rows lie apart, as the parts of a joined projection and states in pages do."""

from torch import Tensor


def as_rows(x: Tensor) -> tuple[Tensor, int]:
    """x [..., D] and the distance of its rows, in elements; a copy if there is more than one distance."""
    wide = [(size, stride) for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True) if size > 1]
    distance = wide[-1][1] if wide else x.shape[-1]
    expected = distance
    for size, stride in reversed(wide):
        if stride != expected:
            return x.contiguous(), x.shape[-1]
        expected *= size
    return (x, distance) if x.stride(-1) == 1 else (x.contiguous(), x.shape[-1])


def as_states(x: Tensor, apart: bool, written: bool) -> Tensor:
    """States [S, …], each contiguous, and next to each other unless they may lie apart.

    Raises:
        ValueError: they would have to be copied, and are written in place.
    """
    if (x[:1] if apart else x).is_contiguous():
        return x
    if written:
        raise ValueError(f"states of strides {x.stride()} cannot be written in place")
    return x.contiguous()
