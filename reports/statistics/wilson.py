"""Wilson's score interval of a proportion: honest at 0 and at 100 %, where the normal one has no width."""

from functools import lru_cache
from math import sqrt

import numpy as np

from evalsuite.reports.statistics.interval import Interval


@lru_cache
def normal_quantile(probability: float) -> float:
    """Quantile of the standard normal distribution."""
    from scipy.special import ndtri  # 0.1 s to import, and only statistics need it

    return float(ndtri(probability))


def wilson(successes: float, trials: int, level: float = 0.95) -> Interval | None:
    """Wilson's interval for a proportion (Wilson 1927), without continuity correction.

    Args:
        successes: their number, 0 … `trials`; a mean of seeds may be no whole number.
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
    """Draws whose quantiles are the ends of Wilson's intervals at every level.

    Args:
        share: observed proportion.
        trials: number of documents.
        normals: standard normal numbers. [draws]
    """
    square = normals * normals / trials
    spread = normals * np.sqrt(share * (1 - share) / trials + square / (4 * trials))
    return (share + square / 2 + spread) / (1 + square)
