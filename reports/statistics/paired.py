"""Differences and levels with few discordant documents, by score intervals.

With fewer than ten discordant documents a bootstrap is too narrow, and with none it has zero width. Then the
score interval of Tango (Statistics in Medicine 17, 1998) is used for a difference, and Wilson's (1927) for a
level: the values that a score test does not reject. They have a positive width without discordant documents
(3.84/n at 95 %) and respect the range of the scores.

Scores in [0, 1] that are not only 0 and 1 enter as *scaled counts*. With the scale s = Σd² ÷ Σ|d|, the
typical size of a difference d, a document counts |d| ÷ s wins or losses. Mean and second moment of the
differences are kept, and s is 1 for right and wrong answers.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from evalsuite.reports.statistics.intervals import Interval, normal_quantile

FEW = 10
"""With fewer discordant documents than this, the score interval is used."""
EQUAL = 1e-9
"""Smaller differences are rounding errors."""
PRIOR = 0.01
"""Weight of one imagined difference of the size of other benchmarks' (else 1) in the scale."""


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


def paired_counts(first: np.ndarray, second: np.ndarray) -> PairedCounts:
    """Count wins and losses of the scores `first` [documents] against `second` [documents]."""
    difference = first - second
    return PairedCounts(len(difference), int((difference > EQUAL).sum()), int((difference < -EQUAL).sum()))


def few_discordant(values: np.ndarray) -> float | None:
    """The most common of `values` [units] if fewer than `FEW` differ from it; else None.

    Also None if no value occurs twice: such scores are continuous, and none of them is a tie.
    """
    unequal = int(np.count_nonzero(np.abs(values) > EQUAL))
    if 2 * unequal <= len(values):
        return 0.0 if unequal < FEW else None
    kinds, counts = np.unique(np.round(values, 8), return_counts=True)
    most = int(counts.argmax())
    is_few = counts[most] > 1 and len(values) - counts[most] < FEW
    return float(kinds[most]) if is_few else None


def scale_of(values: np.ndarray, typical: float = 1.0) -> float:
    """The scale s = Σd² ÷ Σ|d| of differences [units] from zero, with a faint prior at `typical`."""
    sizes = np.abs(values)
    return float((sizes @ sizes + PRIOR * typical**2) / (sizes.sum() + PRIOR * typical))


def score_draws(values: np.ndarray, scale: float, deviates: np.ndarray) -> np.ndarray:
    """Draws of a mean difference whose quantiles are the ends of Tango's interval at every level.

    Args:
        values: differences. [units]
        scale: see `scale_of`; 1 for right and wrong answers.
        deviates: draws of the standard normal distribution, or of Student's t for few units. [draws]
    """
    wins = float(values[values > 0].sum()) / scale
    losses = -float(values[values < 0].sum()) / scale
    grid, bounds = _quantile_table(round(wins, 9), round(losses, 9), len(values))
    return scale * np.interp(deviates, grid, bounds)


def level_bounds(share: float, units: float, scale: float, deviates: np.ndarray) -> np.ndarray:
    """Ends of Wilson's interval of a mean of scores in [0, 1], at each of `deviates`.

    Args:
        share: the mean.
        units: number of documents; with clusters, the number of independent ones of the same information.
        scale: Σx² ÷ Σx of the scores x, 1 for right and wrong answers.
        deviates: standard normal or t draws or quantiles, negative for a lower end.
    """
    part = share / scale
    square = deviates * deviates / units
    spread = deviates * np.sqrt(np.maximum(part * (1 - part), 0.0) / units + square / (4 * units))
    return scale * (part + square / 2 + spread) / (1 + square)


def score_statistic(difference: np.ndarray, wins: float, losses: float, documents: float) -> np.ndarray:
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


def score_bounds(z: np.ndarray, wins: float, losses: float, documents: float) -> np.ndarray:
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


@lru_cache(maxsize=65536)
def _quantile_table(wins: float, losses: float, units: int) -> tuple[np.ndarray, np.ndarray]:
    # Wide enough for the tails of a t distribution; denser in the middle.
    grid = np.sinh(np.linspace(-5, 5, 161)) * 0.4
    return grid, score_bounds(-grid, wins, losses, units)
