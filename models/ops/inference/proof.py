"""A module of kernels is used where it compiles and gives on a sample what torch does."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from evalsuite.models.ops.dispatch import warn_once


def proves_right(deviations: Callable[[], Sequence[float]], dtype: torch.dtype, otherwise: str) -> bool:
    """Whether the kernels run and are close to torch; logs why not.

    Args:
        deviations: runs each kernel in each of its forms on inputs in `dtype`; returns relative differences
            from torch in float32.
        dtype: dtype of the inputs.
        otherwise: what happens without the kernels, for the message.
    """
    try:
        with torch.inference_mode():
            off = max(deviations())
    except Exception as error:  # What a compiler raises can be anything.
        warn_once(f"kernels: {otherwise}: {str(error).splitlines()[0]}")
        return False
    close = off < (1e-4 if dtype == torch.float32 else 2e-2)
    if not close:
        warn_once(f"kernels: {otherwise}: fused ones are off by {off:.2g}")
    return close


def relative_difference(mine: Tensor, theirs: Tensor) -> float:
    """Norm of the difference over that of the second tensor, in float32."""
    return float((mine.float() - theirs.float()).norm() / theirs.float().norm())
