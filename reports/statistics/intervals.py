"""Confidence intervals: the `Interval` type, quantiles, Wilson's and Clopper and Pearson's."""

from dataclasses import dataclass
from functools import lru_cache
from math import sqrt


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

    @property
    def excludes_zero(self) -> bool:
        """Whether both ends have the same sign."""
        return self.low > 0 or self.high < 0

    def scaled(self, factor: float) -> "Interval":
        """Return the interval in another unit; a negative factor swaps the ends."""
        ends = sorted((self.low * factor, self.high * factor))
        return Interval(self.point * factor, ends[0], ends[1], self.method)

    def clipped(self, low: float, high: float) -> "Interval":
        """Return the interval with its ends between `low` and `high`."""
        first, last = (min(max(end, low), high) for end in (self.low, self.high))
        return Interval(self.point, first, last, self.method)


@lru_cache
def normal_quantile(probability: float) -> float:
    """Quantile of the standard normal distribution."""
    from scipy.special import ndtri  # takes 0.1 s to import

    return float(ndtri(probability))


@lru_cache
def student_quantile(degrees: float, probability: float) -> float:
    """Quantile of Student's t distribution."""
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    return float(stdtrit(min(degrees, 1e9), probability))


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


def clopper_pearson(successes: int, trials: int, level: float = 0.95) -> Interval | None:
    """Exact one-sided bounds of a proportion (Clopper and Pearson, Biometrika 26, 1934).

    Each end holds at `level` by itself; both together at 2 · `level` − 1. Without successes the upper one is
    1 − (1 − level)^(1 / trials): a larger proportion would have shown one with probability `level`.

    Args:
        successes: their number, 0 … `trials`.
        trials: number of documents.
        level: confidence level of each end.

    Returns:
        The bounds as fractions, or None without trials.

    Raises:
        ValueError: `successes` is outside 0 … `trials`.
    """
    from scipy.special import betaincinv  # takes 0.1 s to import

    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials")
    if trials == 0:
        return None
    missed = trials - successes
    low = float(betaincinv(successes, missed + 1, 1 - level)) if successes else 0.0
    high = float(betaincinv(successes + 1, missed, level)) if missed else 1.0
    return Interval(successes / trials, low, high, "one-sided Clopper-Pearson")
