"""Paired differences of binary scores, also with few discordant documents.

With fewer than ten discordant documents a bootstrap is too narrow, and with none it has zero width. Then the
score interval of Tango (Statistics in Medicine 17, 1998) is used instead: the set of differences that a score
test does not reject. It has a positive width (3.84/n at 95 %) without discordant documents.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from evalsuite.reports.statistics.bootstrap import Stratum
from evalsuite.reports.statistics.intervals import Interval, normal_quantile

FEW = 10
"""With fewer discordant documents than this, the score interval is used."""


@dataclass(frozen=True, slots=True)
class PairedCounts:
    """Wins and losses of one column against another, document by document."""

    documents: int
    wins: int
    """Documents on which the first column is higher."""
    losses: int

    @property
    def ties(self) -> int:
        """Documents on which both are equal."""
        return self.documents - self.wins - self.losses

    @property
    def discordant(self) -> int:
        """Documents on which they differ."""
        return self.wins + self.losses


def paired_counts(stratum: Stratum, first: int, second: int) -> PairedCounts:
    """Count wins and losses of column `first` against column `second`."""
    difference = stratum.values[:, first] - stratum.values[:, second]
    return PairedCounts(
        stratum.documents,
        int(stratum.counts[difference > 0].sum()),
        int(stratum.counts[difference < 0].sum()),
    )


def score_statistic(difference: np.ndarray, wins: float, losses: float, documents: int) -> np.ndarray:
    """Tango's score statistic for a paired difference of proportions.

    Args:
        difference: hypothetical differences, inside (−1, 1).
        wins: documents on which only the first is correct.
        losses: documents on which only the second is correct.
        documents: number of documents.

    Returns:
        (wins − losses − n·δ) / its standard deviation under the restricted maximum-likelihood estimate;
        decreasing in δ.
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
    """Tango's interval for the difference of two paired proportions, a fraction; None without documents."""
    if documents == 0:
        return None
    z = normal_quantile(0.5 + level / 2)
    low, high = score_bounds(np.array([z, -z]), wins, losses, documents)
    return Interval((wins - losses) / documents, float(low), float(high), "Tango score")


def score_draws(counts: PairedCounts, normals: np.ndarray) -> np.ndarray:
    """Draws whose quantiles are the ends of Tango's interval at every level.

    They let a benchmark with few discordant documents enter an average with resampled benchmarks.

    Args:
        counts: wins, losses and documents.
        normals: standard normal draws. [draws]

    Returns:
        Differences, as fractions. [draws]
    """
    grid, bounds = _quantile_table(counts.wins, counts.losses, counts.documents)
    return np.interp(normals, grid, bounds)


@lru_cache(maxsize=4096)
def _quantile_table(wins: int, losses: int, documents: int) -> tuple[np.ndarray, np.ndarray]:
    # Covers p down to 1e-7, beyond any level that a gate with many rules needs.
    grid = np.linspace(-5.2, 5.2, 417)
    return grid, score_bounds(-grid, wins, losses, documents)
