"""Paired differences of right-or-wrong answers, and what to do where almost no documents disagree.

With fewer than ten disagreements a bootstrap is too narrow, and with none it has no width at all. There
the score interval of Tango (Statistics in Medicine 17, 1998) takes over: it is the set of differences that
a score test does not reject, and keeps its width at no disagreement (3.84/n at 95 %).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from evalsuite.reports.statistics.bootstrap import Stratum
from evalsuite.reports.statistics.interval import Interval
from evalsuite.reports.statistics.wilson import normal_quantile

FEW = 10
"""Fewer disagreeing documents than this, and the score interval is used."""


@dataclass(frozen=True, slots=True)
class Disagreements:
    """How two columns compare, document by document."""

    documents: int
    wins: int
    """Documents where the first is above the second."""
    losses: int

    @property
    def ties(self) -> int:
        """Documents where both are equal."""
        return self.documents - self.wins - self.losses

    @property
    def contested(self) -> int:
        """Documents where they differ."""
        return self.wins + self.losses


def disagreements(stratum: Stratum, first: int, second: int) -> Disagreements:
    """Count wins and losses of column `first` against column `second`."""
    difference = stratum.values[:, first] - stratum.values[:, second]
    return Disagreements(
        stratum.documents,
        int(stratum.counts[difference > 0].sum()),
        int(stratum.counts[difference < 0].sum()),
    )


def score_statistic(difference: np.ndarray, wins: float, losses: float, documents: int) -> np.ndarray:
    """Tango's score statistic for a paired difference of proportions.

    Args:
        difference: hypothetical differences, inside (−1, 1).
        wins: documents where only the first is right.
        losses: documents where only the second is right.
        documents: all of them.

    Returns:
        (wins − losses − n·δ) / its standard deviation under the restricted maximum-likelihood estimate;
        falls as δ grows.
    """
    n = documents
    a = 2.0 * n
    b = -wins - losses + (2.0 * n - wins + losses) * difference
    c = -losses * difference * (1.0 - difference)
    # The numerically stable root: b may be as large as the square root itself.
    root = np.sqrt(np.maximum(b * b - 4 * a * c, 0.0))
    only_second = np.where(b > 0, -2 * c / np.where(b + root == 0, 1.0, b + root), (root - b) / (2 * a))
    variance = n * (2 * only_second + difference * (1.0 - difference))
    return (wins - losses - n * difference) / np.sqrt(np.maximum(variance, 1e-300))


def score_bounds(z: np.ndarray, wins: float, losses: float, documents: int) -> np.ndarray:
    """Differences at which Tango's statistic equals `z`, by bisection. [len(z)]"""
    low = np.full(np.shape(z), -1.0 + 1e-12)
    high = np.full(np.shape(z), 1.0 - 1e-12)
    for _ in range(50):
        middle = (low + high) / 2
        above = score_statistic(middle, wins, losses, documents) > z
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return (low + high) / 2


def score_interval(wins: int, losses: int, documents: int, level: float = 0.95) -> Interval | None:
    """Tango's interval for the difference of two paired proportions, as fractions; None without documents."""
    if documents == 0:
        return None
    z = normal_quantile(0.5 + level / 2)
    low, high = score_bounds(np.array([z, -z]), wins, losses, documents)
    return Interval((wins - losses) / documents, float(low), float(high), "Tango score")


def score_draws(contest: Disagreements, normals: np.ndarray) -> np.ndarray:
    """Draws whose quantiles are the ends of Tango's intervals at every level.

    This lets a benchmark with few disagreements enter an average beside others that are resampled.

    Args:
        contest: the counts.
        normals: standard normal numbers. [draws]

    Returns:
        Differences, as fractions. [draws]
    """
    grid, bounds = _score_table(contest.wins, contest.losses, contest.documents)
    return np.interp(normals, grid, bounds)


@lru_cache(maxsize=4096)
def _score_table(wins: int, losses: int, documents: int) -> tuple[np.ndarray, np.ndarray]:
    # Reaches to p = 1e-7, past any level that a gate of many lines asks for.
    grid = np.linspace(-5.2, 5.2, 417)
    return grid, score_bounds(-grid, wins, losses, documents)
