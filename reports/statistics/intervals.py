"""Confidence intervals: the `Interval` type, Wilson's score interval, and the interval of a mean (MOVER)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np


@dataclass(frozen=True, slots=True)
class Interval:
    """A point estimate and the two ends of its confidence interval, in the unit of the point."""

    point: float
    low: float
    high: float
    method: str = ""
    """Name of the method, for the caption of a table."""

    @property
    def width(self) -> float:
        """`high` − `low`."""
        return self.high - self.low

    def scaled(self, factor: float) -> "Interval":
        """Return the interval in another unit; a negative factor swaps the ends."""
        ends = sorted((self.low * factor, self.high * factor))
        return Interval(self.point * factor, ends[0], ends[1], self.method)


def mean_of(intervals: Sequence[Interval]) -> Interval:
    """Interval of the mean of independent quantities, from their intervals (MOVER: Zou and Donner, 2008).

    The distance from the point to each end is the root of the sum of the squared distances of the parts,
    divided by their number; asymmetric parts give an asymmetric interval.
    """
    n = len(intervals)
    point = sum(interval.point for interval in intervals) / n
    below = sqrt(sum((interval.point - interval.low) ** 2 for interval in intervals)) / n
    above = sqrt(sum((interval.high - interval.point) ** 2 for interval in intervals)) / n
    return Interval(point, point - below, point + above, "MOVER" if n > 1 else intervals[0].method)


@lru_cache
def normal_quantile(probability: float) -> float:
    """Quantile of the standard normal distribution."""
    from scipy.special import ndtri  # takes 0.1 s to import

    return float(ndtri(probability))


def wilson(successes: float, trials: int, level: float = 0.95) -> Interval | None:
    """Wilson's interval for a proportion (Wilson 1927), without continuity correction.

    Args:
        successes: their number, 0 … `trials`; fractional for means over seeds.
        trials: number of documents.
        level: confidence level.

    Returns:
        The interval as fractions, or None without trials.

    Raises:
        ValueError: `successes` is outside 0 … `trials`.
    """
    if trials == 0:
        return None
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials")
    z = normal_quantile(0.5 + level / 2)
    share = successes / trials
    scale = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z * sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / scale
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == trials else min(1.0, centre + half)
    return Interval(share, low, high, "Wilson score")


def wilson_draws(share: float, trials: int, normals: np.ndarray) -> np.ndarray:
    """Draws whose quantiles are the ends of Wilson's interval at every level.

    Args:
        share: observed proportion.
        trials: number of documents.
        normals: standard normal draws. [draws]
    """
    square = normals * normals / trials
    spread = normals * np.sqrt(share * (1 - share) / trials + square / (4 * trials))
    return (share + square / 2 + spread) / (1 + square)
