"""A scale for distances: the same teacher with its weights rounded to fewer and fewer bits."""

from collections.abc import Mapping

import numpy as np


def equivalent_bits(kl: np.ndarray, scale: Mapping[int, float]) -> np.ndarray | str:
    """Bits of the rounding that is as far from the teacher, interpolating log KL linearly between roundings.

    Args:
        kl: KL divergences in nats per token, any shape.
        scale: bits → KL divergence of the teacher rounded to so many bits; those not above 0 are left out.

    Returns:
        The bits, with values beyond the ends of the scale set to its ends; or why there are none: a scale of
        fewer than two marks, or one on which fewer bits are not further away.
    """
    marks = sorted((bits, value) for bits, value in scale.items() if value > 0)
    if len(marks) < 2:
        return "the yardstick has fewer than two marks"
    bits, values = np.array(marks, dtype=float).T
    if (np.diff(values) >= 0).any():
        return "the yardstick does not grow with coarser rounding"
    with np.errstate(divide="ignore"):
        place = np.log(np.maximum(kl, 0.0))
    return np.asarray(np.interp(-place, -np.log(values), bits))
