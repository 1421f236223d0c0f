"""Bootstrap samples: averages over benchmarks and contrasts between checkpoints, with their draws.

The documents of a cell are resampled once for all checkpoints, so that every comparison is paired. What is
drawn for a checkpoint depends on the documents and on the checkpoint alone: another student in the report
changes no number of the others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evalsuite.foundation import content_hash
from evalsuite.reports.statistics.bootstrap import DRAWS, Stratum, resample
from evalsuite.reports.statistics.contrasts import Contrast, satterthwaite
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.statistics.paired import (
    EQUAL,
    few_discordant,
    level_bounds,
    scale_of,
    score_draws,
)

METHOD = "paired bootstrap over documents, stratified by benchmark"
CLUSTER_METHOD = "paired bootstrap over clusters of documents, stratified by benchmark"
FEW_METHOD = "Tango score interval (fewer than ten discordant documents)"
LEVEL_METHOD = "Wilson score"

KEPT = 64
"""Contrasts that a stratum keeps, 2 MB of draws: averages over scopes and benchmarks share most of theirs."""

Terms = Mapping[int, float]
"""Column → coefficient of a contrast."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate with its interval, or the reason why it is undefined."""

    interval: Interval | None
    why: str = ""
    """Why it is undefined; empty if it is defined."""

    @property
    def point(self) -> float | None:
        """The point estimate."""
        return self.interval.point if self.interval else None


def _combined(rows: np.ndarray, terms: Terms) -> np.ndarray:
    """Σ coefficient · row, in the order of the terms; most coefficients are 1 and −1. [columns of `rows`]"""
    total: np.ndarray | None = None
    for row, factor in terms.items():
        if total is None:
            total = 0.0 + factor * rows[row]
        elif factor == -1.0:
            total -= rows[row]
        else:
            total += factor * rows[row]
    assert total is not None
    return total


class ResampledStratum:
    """A stratum with the draws of its column means, and contrasts between its columns."""

    def __init__(self, stratum: Stratum, draws: int = DRAWS) -> None:
        """Resample. Raises ValueError for fewer than two units."""
        self.stratum = stratum
        self.degrees = float(stratum.units - 1)
        self._draws = resample(stratum, draws)
        self._deviates = stratum.rng("score").standard_t(self.degrees, draws)
        # Totals in units of the mean size, so that the mean over units is the mean over documents.
        self._columns = np.ascontiguousarray((stratum.totals * (stratum.units / stratum.documents)).T)
        self._sizes = stratum.sizes * (stratum.units / stratum.documents)
        self._kept: dict[tuple[object, ...], Contrast] = {}

    def point(self, terms: Terms) -> float:
        """Value of a contrast."""
        return float(sum(factor * self.stratum.means[column] for column, factor in terms.items()))

    def units(self, terms: Terms) -> np.ndarray:
        """The contrast in each document, or cluster. [units]"""
        return _combined(self._columns, terms)

    def is_binary(self, terms: Terms) -> bool:
        """Whether only right and wrong answers enter, from documents without clusters."""
        return self.stratum.clusters is None and bool(self.stratum.is_binary[list(terms)].all())

    def bootstrap(self, terms: Terms) -> Contrast:
        """The contrast by the bootstrap."""
        return self._once(("bootstrap", *terms.items()), lambda: self._bootstrap(terms))

    def score(self, terms: Terms, scale: float) -> Contrast:
        """The contrast by Tango's interval, for few discordant units."""
        return self._once(("score", scale, *terms.items()), lambda: self._score(terms, scale))

    def level(self, column: int) -> Contrast:
        """The mean of a column of scores in [0, 1]; its draws stay there."""
        return self._once(("level", column), lambda: self._level(column))

    def _once(self, key: tuple[object, ...], make: Callable[[], Contrast]) -> Contrast:
        """What `make` returns, made anew only if it is not among the `KEPT` that were used last."""
        found = self._kept.pop(key, None) or make()
        self._kept[key] = found
        if len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]
        return found

    def _bootstrap(self, terms: Terms) -> Contrast:
        draws = _combined(self._draws, terms)
        point, units = self.point(terms), self.units(terms)
        residual = units - point * self._sizes
        variance = float(residual @ residual) / (len(units) * (len(units) - 1))
        return self._with_seeds(Contrast(point, draws, self.degrees, variance), terms)

    def _score(self, terms: Terms, scale: float) -> Contrast:
        units = self.units(terms)
        low, high = score_draws(units, scale, np.array([-1.0, 1.0]))
        draws = score_draws(units, scale, self._deviates)
        contrast = Contrast(self.point(terms), draws, self.degrees, float(high - low) ** 2 / 4)
        return self._with_seeds(contrast, terms)

    def _level(self, column: int) -> Contrast:
        terms = {column: 1.0}
        units = self.units(terms)
        mode = few_discordant(units)
        if mode is None and not self.is_binary(terms):
            contrast = self.bootstrap(terms)
        else:
            scale = scale_of(np.abs(units - mode)) if mode in (0.0, 1.0) else 1.0
            point = self.point(terms)
            share = 1 - point if mode == 1.0 else point
            bounds = level_bounds(share, len(units), scale, np.append(self._deviates, [-1.0, 1.0]))
            bounds = 1 - bounds if mode == 1.0 else bounds
            variance = float(bounds[-1] - bounds[-2]) ** 2 / 4
            contrast = Contrast(point, bounds[:-2], self.degrees, variance)
            contrast = self._with_seeds(contrast, terms)
        draws = np.clip(contrast.draws, 0.0, 1.0)
        return Contrast(contrast.point, draws, contrast.degrees, contrast.variance)

    def _with_seeds(self, contrast: Contrast, terms: Terms) -> Contrast:
        """Add the noise of the sampling seeds: independent t draws for each checkpoint."""
        for column, factor in terms.items():
            variance = self.stratum.seed_variance[column] if self.stratum.seed_variance.size else 0.0
            if variance > 0:
                rng = self.stratum.rng("seeds", self.stratum.columns[column])
                degrees = float(self.stratum.seed_degrees[column])
                contrast = contrast.with_noise(factor * factor * variance, degrees, rng)
        return contrast


class BootstrapSample:
    """Strata with common columns and their weights in an average."""

    def __init__(self, strata: Sequence[ResampledStratum], weights: Sequence[float]) -> None:
        """Combine strata; the weights are normalized to sum to 1."""
        self.strata = tuple(strata)
        self.weights = np.asarray(weights, dtype=float) / np.sum(weights)
        self._known_scales: dict[frozenset[tuple[int, float]], list[float | None]] = {}

    @property
    def documents(self) -> int:
        """Number of documents in all strata."""
        return sum(each.stratum.documents for each in self.strata)

    def level(self, column: int) -> float:
        """Weighted mean of a column."""
        return self.point({column: 1.0})

    def point(self, terms: Terms) -> float:
        """Weighted mean of a contrast."""
        return float(sum(w * each.point(terms) for w, each in zip(self.weights, self.strata, strict=True)))

    def level_contrast(self, column: int) -> Contrast:
        """The weighted mean of a column of scores in [0, 1], with draws that stay there."""
        return self.average([each.level(column) for each in self.strata])

    def mean(self, terms: Terms) -> Contrast:
        """A contrast by the bootstrap alone, such as a teacher's lead over chance."""
        return self.average([each.bootstrap(terms) for each in self.strata])

    def difference(self, first: int, second: int) -> Contrast:
        """Weighted mean of `first` − `second`."""
        return self.contrast({first: 1.0, second: -1.0})

    def contrast(self, terms: Terms) -> Contrast:
        """A contrast between checkpoints whose coefficients sum to zero: a difference, or a gap.

        Where few units are discordant, Tango's interval replaces the bootstrap.
        """
        parts = [
            each.bootstrap(terms) if scale is None else each.score(terms, scale)
            for each, scale in zip(self.strata, self._scales(terms), strict=True)
        ]
        return self.average(parts)

    def rng(self, purpose: str, *columns: int) -> np.random.Generator:
        """Generator that depends on the documents, the purpose and the named columns alone."""
        names = [self.strata[0].stratum.columns[column] for column in columns]
        keys = [each.stratum.key for each in self.strata]
        return np.random.default_rng(int(content_hash([purpose, *sorted(names), *keys]), 16))

    def method(self, terms: Terms) -> str:
        """Name the method of the intervals of a contrast."""
        if all(scale is not None for scale in self._scales(terms)):
            return FEW_METHOD
        return METHOD if all(each.stratum.clusters is None for each in self.strata) else CLUSTER_METHOD

    def _scales(self, terms: Terms) -> list[float | None]:
        """Scale of the counts in each stratum with few discordant units; None in the others."""
        key = frozenset(terms.items())
        if key not in self._known_scales:
            self._known_scales[key] = self._find_scales(terms)
        return self._known_scales[key]

    def _find_scales(self, terms: Terms) -> list[float | None]:
        units = [each.units(terms) for each in self.strata]
        modes = [few_discordant(each) for each in units]
        if all(mode is None for mode in modes):
            return [None] * len(units)
        continuous = [not each.is_binary(terms) for each in self.strata]
        sums = np.array(
            [[u @ u, np.abs(u).sum()] if c else [0.0, 0.0] for u, c in zip(units, continuous, strict=True)]
        )
        scales: list[float | None] = []
        for i, mode in enumerate(modes):
            if mode is None:
                scales.append(None)
            elif mode != 0.0 or not continuous[i]:
                scales.append(1.0)
            else:
                squares, sizes = sums.sum(axis=0) - sums[i]
                scales.append(scale_of(units[i], squares / sizes if sizes > EQUAL else 1.0))
        return scales

    def average(self, parts: Sequence[Contrast]) -> Contrast:
        """Weighted mean of one contrast per stratum."""
        weighted = list(zip(self.weights, parts, strict=True))
        variances = [(w * w * part.variance, part.degrees) for w, part in weighted]
        return Contrast(
            float(sum(w * part.point for w, part in weighted)),
            np.asarray(sum(w * part.draws for w, part in weighted)),
            satterthwaite(variances),
            sum(variance for variance, _ in variances),
        )
