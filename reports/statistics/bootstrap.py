"""Bootstrap draws of means: documents, or clusters of documents, resampled with replacement.

Documents of one cluster (a passage, a subject, a relation) are resampled together. The deviations of a draw
are scaled by √(G/(G−1)), which makes their variance unbiased, and by √(df/χ²) with df = G−1, which gives them
the tails of Student's t at every level; G is the number of clusters, or of documents where there are none.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from evalsuite.foundation import content_hash

DRAWS = 4000
_CHUNK = 2_000_000
_GRID = 2.0**30
"""Values are rounded to a binary grid on which sums are exact, whatever the order of summation."""


@dataclass(frozen=True)
class Stratum:
    """The documents of one cell, and the quantities compared on them."""

    values: np.ndarray
    """[documents, columns]; a column is finite, or NaN throughout (an absent checkpoint)"""
    columns: tuple[str, ...]
    """Name of each column; the noise of its sampling seeds depends on it."""
    key: str
    """Name of the documents; the resamples depend on it and on nothing else."""
    clusters: np.ndarray | None = None
    """[documents] cluster codes from 0; None for independent documents"""
    seed_variance: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """[columns] variance of each column's mean due to sampling seeds; empty for none"""
    seed_degrees: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """[columns] its degrees of freedom: seeds − 1"""

    def __post_init__(self) -> None:
        """Round the values to the grid. Raises ValueError for no documents or partly finite columns."""
        values = np.asarray(self.values, dtype=float)
        if values.ndim != 2 or len(values) == 0:
            raise ValueError(f"expected [documents, columns], got shape {values.shape}")
        if not (np.isfinite(values).all(axis=0) | np.isnan(values).all(axis=0)).all():
            raise ValueError("values must be finite")
        object.__setattr__(self, "values", np.round(values * _GRID) / _GRID)

    @property
    def documents(self) -> int:
        """Number of documents."""
        return len(self.values)

    @cached_property
    def totals(self) -> np.ndarray:
        """[units, columns] sum of each column over the documents of a cluster (or the document itself)."""
        if self.clusters is None:
            return self.values
        totals = np.zeros((int(self.clusters.max()) + 1, self.values.shape[1]))
        np.add.at(totals, self.clusters, self.values)
        return totals

    @cached_property
    def sizes(self) -> np.ndarray:
        """[units] number of documents of each cluster."""
        if self.clusters is None:
            return np.ones(len(self.values))
        return np.bincount(self.clusters).astype(float)

    @property
    def units(self) -> int:
        """Number of clusters, or of documents where there are none."""
        return len(self.sizes)

    @cached_property
    def means(self) -> np.ndarray:
        """[columns] mean over the documents."""
        return self.values.sum(axis=0) / len(self.values)

    @cached_property
    def is_binary(self) -> np.ndarray:
        """[columns] whether all values of a column are 0 or 1."""
        return np.asarray(np.isin(self.values, (0.0, 1.0)).all(axis=0))

    def rng(self, *purpose: str) -> np.random.Generator:
        """Generator that depends on the documents and the purpose alone."""
        return _rng(self.key, *purpose)


def resample(stratum: Stratum, draws: int = DRAWS) -> np.ndarray:
    """Draw means of bootstrap resamples. [columns, draws]

    Raises:
        ValueError: fewer than two units.
    """
    units = stratum.units
    if units < 2:
        raise ValueError("a bootstrap needs two documents of different clusters")
    totals, sizes = np.nan_to_num(stratum.totals), stratum.sizes
    means = np.empty((totals.shape[1], draws))
    rng, degrees = stratum.rng("resample"), units - 1
    chunks: Iterable[np.ndarray] = _drawn(rng, units, draws)
    chi_square = None
    if units * draws <= _CHUNK:
        counts, chi_square = _drawn_at_once(stratum.key, units, draws)
        chunks = [counts]
    start = 0
    for chunk in chunks:
        counts, stop = chunk.astype(float), start + len(chunk)
        means[:, start:stop] = ((counts @ totals) / (counts @ sizes)[:, None]).T
        start = stop
    if chi_square is None:
        chi_square = rng.chisquare(degrees, draws)
    factor = np.sqrt(units / degrees * degrees / chi_square)
    centre = stratum.means[:, None]
    return centre + (means - centre) * factor


def _rng(key: str, *purpose: str) -> np.random.Generator:
    return np.random.default_rng(int(content_hash([key, *purpose]), 16))


def _drawn(rng: np.random.Generator, units: int, draws: int) -> Iterator[np.ndarray]:
    """Yield how often each unit is in each of some resamples. [resamples, units]"""
    step = max(1, _CHUNK // units)
    for start in range(0, draws, step):
        size = min(step, draws - start)
        drawn = rng.integers(0, units, (size, units), dtype=np.int64)
        drawn += np.arange(size)[:, None] * units
        yield np.bincount(drawn.ravel(), minlength=size * units).reshape(size, units)


@lru_cache(maxsize=16)
def _drawn_at_once(key: str, units: int, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """All resamples of a small stratum and their χ²; a report resamples the same documents many times."""
    rng = _rng(key, "resample")
    (counts,) = _drawn(rng, units, draws)
    return counts.astype(np.int32), rng.chisquare(units - 1, draws)
