"""Tensors as matrices whose rows lie apart, as the parts of a joined projection do."""

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
