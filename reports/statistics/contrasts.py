"""Contrasts: an estimate with its draws, and intervals, p-values and quantiles of it at any level."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, sqrt

import numpy as np

from evalsuite.reports.statistics.intervals import Interval, normal_quantile, student_quantile

EDGE = 0.01
"""Beyond these quantiles of the draws, a t tail takes over: levels are not limited by the number of draws."""
ONE_DEVIATION = (0.158655, 0.841345)
"""Quantiles of a normal distribution at one standard deviation on either side."""
_WIDEST = 1e3
"""An end of a ratio's interval beyond this distance from the point is no bound, and infinite."""


@dataclass(frozen=True, eq=False)
class Contrast:
    """A linear combination of means, with draws of its sampling distribution."""

    point: float
    draws: np.ndarray
    """[draws]"""
    degrees: float
    """Degrees of freedom of its standard error (Satterthwaite)."""
    variance: float
    """Squared standard error."""

    def interval(self, level: float = 0.95, method: str = "") -> Interval:
        """Percentile interval at `level`."""
        low, high = self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)
        return Interval(self.point, min(low, self.point), max(high, self.point), method)

    def quantile(self, probability: float) -> float:
        """Quantile of the draws; beyond `EDGE`, of a t distribution through the quantile at the edge."""
        if EDGE <= probability <= 1 - EDGE:
            return self._quantile_of_draws(probability)
        at = EDGE if probability < EDGE else 1 - EDGE
        stretch = student_quantile(self.degrees, probability) / student_quantile(self.degrees, at)
        return self.point + (self._quantile_of_draws(at) - self.point) * stretch

    def below(self, value: float = 0.0) -> float:
        """Probability of a draw at or below `value`, the inverse of `quantile`."""
        from scipy.special import stdtr

        share = float(np.searchsorted(self._ordered, value, side="right")) / len(self.draws)
        if EDGE <= share <= 1 - EDGE:
            return share
        at = EDGE if share < EDGE else 1 - EDGE
        distance = self._quantile_of_draws(at) - self.point
        if distance == 0:
            return 1.0 if value >= self.point else 0.0
        return float(
            stdtr(self.degrees, (value - self.point) / distance * student_quantile(self.degrees, at))
        )

    def p_value(self) -> float:
        """Two-sided p-value of the hypothesis that the contrast is zero."""
        if self.point == 0:
            return 1.0
        return min(1.0, 2 * (self if self.point > 0 else self.scaled(-1)).below(0.0))

    def detectable(self, level: float = 0.95, power: float = 0.8) -> float:
        """Minimum detectable effect of a two-sided test at `level`: half width + z_power · standard error."""
        half = (self.quantile(0.5 + level / 2) - self.quantile(0.5 - level / 2)) / 2
        return half * (1 + normal_quantile(power) / student_quantile(self.degrees, 0.5 + level / 2))

    @property
    def deviation(self) -> float:
        """Half the width of the central 68 % of the draws, the standard deviation of a normal tail."""
        low, high = map(self._quantile_of_draws, ONE_DEVIATION)
        return (high - low) / 2

    @cached_property
    def _ordered(self) -> np.ndarray:
        """The draws, sorted once for all quantiles. [draws]"""
        return np.sort(self.draws)

    def _quantile_of_draws(self, probability: float) -> float:
        """Equal `numpy.quantile(draws, probability)` bit by bit; a report has 100,000 of them."""
        position = (len(self.draws) - 1) * probability
        at = int(position)
        share = position - at
        low, high = float(self._ordered[at]), float(self._ordered[min(at + 1, len(self.draws) - 1)])
        return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)

    def shifted(self, distance: float) -> "Contrast":
        """Return the contrast plus a constant."""
        return Contrast(self.point + distance, self.draws + distance, self.degrees, self.variance)

    def scaled(self, factor: float) -> "Contrast":
        """Return the contrast in another unit."""
        return Contrast(
            factor * self.point, factor * self.draws, self.degrees, factor * factor * self.variance
        )

    def minus(self, other: "Contrast", factor: float = 1.0) -> "Contrast":
        """self − factor · other, draw by draw; keeps the degrees of freedom of the wider of the two."""
        wider = self if self.variance >= factor * factor * other.variance else other
        draws = self.draws - factor * other.draws
        found = Contrast(self.point - factor * other.point, draws, wider.degrees, 0.0)
        return replace(found, variance=found.deviation**2)

    def with_noise(self, variance: float, degrees: float, rng: np.random.Generator) -> "Contrast":
        """Add independent noise of an estimated variance: draws of Student's t."""
        if variance == 0:
            return self
        noise = sqrt(variance) * rng.standard_t(degrees, len(self.draws))
        total = self.variance + variance
        both = satterthwaite([(self.variance, self.degrees), (variance, degrees)])
        return Contrast(self.point, self.draws + noise, both, total)


def satterthwaite(parts: Sequence[tuple[float, float]]) -> float:
    """Degrees of freedom of a sum of variance estimates: (Σv)² ÷ Σ(v² ÷ df) (Satterthwaite 1946)."""
    spread = sum(variance * variance / degrees for variance, degrees in parts)
    total = sum(variance for variance, _ in parts)
    return total * total / spread if spread else min((degrees for _, degrees in parts), default=1.0)


def is_positive(contrast: Contrast, level: float = 0.95) -> bool:
    """Fieller's criterion: whether the t interval of a denominator lies above zero; needs no draws."""
    return contrast.point > student_quantile(contrast.degrees, 0.5 + level / 2) * sqrt(contrast.variance)


def ratio_interval(
    numerator: Contrast, denominator: Contrast, level: float = 0.95, method: str = ""
) -> Interval:
    """Fieller's interval of a ratio, by bootstrap: the θ for which numerator − θ·denominator may be zero.

    An end is the θ at which the share of draws with numerator − θ·denominator ≤ 0 crosses a tail of the
    level, found by bisection. No draw is divided by another, so a denominator near zero does no harm; an end
    that it leaves without a bound is infinite.

    Args:
        numerator: with draws paired to those of the denominator.
        denominator: positive by `is_positive`.
    """
    point = numerator.point / denominator.point

    def reaches(ratio: float, tail: float) -> bool:
        share = np.count_nonzero(numerator.draws <= ratio * denominator.draws) / len(numerator.draws)
        return bool(share >= tail)

    def end(tail: float) -> float:
        low, high = (point - _WIDEST, point) if tail < 0.5 else (point, point + _WIDEST)
        if tail < 0.5 and reaches(low, tail):
            return -inf
        if tail > 0.5 and not reaches(high, tail):
            return inf
        for _ in range(45):
            middle = (low + high) / 2
            low, high = (low, middle) if reaches(middle, tail) else (middle, high)
        return (low + high) / 2

    ends = end(0.5 - level / 2), end(0.5 + level / 2)
    return Interval(point, min(ends[0], point), max(ends[1], point), method)
