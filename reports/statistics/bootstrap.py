"""The paired bootstrap over documents, stratified by benchmark.

Documents with equal values form one pattern, and drawing documents with replacement means drawing the counts
of patterns from a multinomial distribution. Binary scores have few patterns, so that ten thousand documents
cost no more than sixteen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from evalsuite.reports.statistics.intervals import Interval

DRAWS = 4000
_CHUNK = 4_000_000


@dataclass(frozen=True, slots=True)
class Stratum:
    """The documents of one benchmark: distinct rows of values, and the count of each.

    Columns are the quantities compared on the same documents: checkpoints, protocols, a chance level.
    """

    values: np.ndarray
    """[patterns, columns]"""
    counts: np.ndarray
    """[patterns], integers"""
    seed_variance: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """[columns]: variance of each column's mean due to sampling seeds; empty for none."""

    @property
    def documents(self) -> int:
        """Number of documents."""
        return int(self.counts.sum())

    def means(self) -> np.ndarray:
        """Mean of each column over the documents. [columns]"""
        return self.counts @ self.values / self.counts.sum()

    def columns(self, *indices: int) -> "Stratum":
        """Return the same documents with only these columns."""
        seeds = self.seed_variance[list(indices)] if self.seed_variance.size else self.seed_variance
        return Stratum(self.values[:, indices], self.counts, seeds)


def collapse(rows: np.ndarray, seed_variance: np.ndarray | None = None) -> Stratum:
    """Collapse equal rows into patterns with counts.

    Args:
        rows: [documents, columns]; a column is finite, or NaN throughout (for an absent checkpoint).
        seed_variance: see `Stratum`.

    Raises:
        ValueError: no documents, or a column in which only some values are finite.
    """
    rows = np.asarray(rows, dtype=float)
    if rows.ndim != 2 or len(rows) == 0:
        raise ValueError(f"expected [documents, columns], got shape {rows.shape}")
    if not (np.isfinite(rows).all(axis=0) | np.isnan(rows).all(axis=0)).all():
        raise ValueError("values must be finite")
    # Sorting one integer code per row is much faster than sorting rows of floats.
    codes = np.zeros(len(rows), dtype=np.int64)
    for column in rows.T:
        _, inverse = np.unique(column, return_inverse=True)
        _, codes = np.unique(codes * (inverse.max() + 1) + inverse, return_inverse=True)
    _, first, counts = np.unique(codes, return_index=True, return_counts=True)
    return Stratum(rows[first], counts, np.zeros(0) if seed_variance is None else seed_variance)


def resample(strata: Sequence[Stratum], rng: np.random.Generator, draws: int = DRAWS) -> np.ndarray:
    """Draw means of bootstrap resamples.

    Deviations from the sample mean are scaled by √(n/(n−1)), which makes their variance unbiased (one per
    cent of width at fifty documents). Seeds add a normal term of their variance.

    Returns:
        [draws, strata, columns]
    """
    columns = strata[0].values.shape[1]
    means = np.empty((draws, len(strata), columns))
    for index, stratum in enumerate(strata):
        n = stratum.documents
        if n < 2:
            raise ValueError("a bootstrap needs two documents")
        centre = stratum.means()
        step = max(1, _CHUNK // len(stratum.counts))
        for start in range(0, draws, step):
            size = min(step, draws - start)
            counts = rng.multinomial(n, stratum.counts / n, size=size)
            means[start : start + size, index] = counts @ stratum.values / n
        means[:, index] = centre + (means[:, index] - centre) * np.sqrt(n / (n - 1))
        if stratum.seed_variance.any():
            means[:, index] += rng.standard_normal((draws, columns)) * np.sqrt(stratum.seed_variance)
    return means


def percentile_interval(
    point: float, draws: np.ndarray, level: float = 0.95, method: str = ""
) -> Interval | None:
    """Percentile interval of `draws` [draws] around `point`; None if a draw is not finite."""
    if not np.isfinite(draws).all():
        return None
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2])
    return Interval(point, min(float(low), point), max(float(high), point), method)
