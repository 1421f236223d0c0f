"""Bootstrap samples: averages over benchmarks and differences between checkpoints, with their intervals.

The documents of each cell are resampled once for all checkpoints, so that all comparisons are paired.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evalsuite.reports.statistics.bootstrap import DRAWS, Stratum, percentile_interval, resample
from evalsuite.reports.statistics.intervals import Interval, wilson_draws
from evalsuite.reports.statistics.paired import FEW, paired_counts, score_draws

METHOD = "paired bootstrap over documents, stratified by benchmark"
FEW_METHOD = "Tango score interval (fewer than ten discordant documents)"


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


def discordant_count(values: np.ndarray, counts: np.ndarray) -> int:
    """Number of documents whose value differs from the most common value.

    Args:
        values: one per pattern.
        counts: documents of each pattern.
    """
    _, kinds = np.unique(np.round(values, 9), return_inverse=True)
    return int(counts.sum() - np.bincount(kinds, weights=counts).max())


class BootstrapSample:
    """Strata with common columns, their weights, and bootstrap draws of their means."""

    def __init__(
        self,
        strata: Sequence[Stratum],
        weights: Sequence[float],
        rng: np.random.Generator,
        *,
        draws: int = DRAWS,
        means: np.ndarray | None = None,
    ) -> None:
        """Resample.

        Args:
            strata: one per benchmark (and context), all with the same columns.
            weights: weights of the strata in the average; normalized to sum to 1.
            rng: source of the draws.
            draws: number of draws.
            means: existing draws, [draws, strata, columns]; default: resample.
        """
        self.strata = tuple(strata)
        self.weights = np.asarray(weights, dtype=float) / np.sum(weights)
        self.means = np.array([stratum.means() for stratum in strata])
        self._rng = rng
        self._draws = resample(strata, rng, draws) if means is None else means
        self._differences: dict[tuple[int, int], np.ndarray] = {}

    def only(self, strata: Sequence[int], weights: Sequence[float]) -> "BootstrapSample":
        """Return the same draws for a subset of the strata, with other weights."""
        chosen = [self.strata[index] for index in strata]
        return BootstrapSample(chosen, weights, self._rng, means=self._draws[:, list(strata)])

    @property
    def documents(self) -> int:
        """Number of documents in all strata."""
        return sum(stratum.documents for stratum in self.strata)

    def level(self, column: int) -> float:
        """Weighted mean of a column."""
        return float(self.weights @ self.means[:, column])

    def level_draws(self, column: int) -> np.ndarray:
        """Draws of the weighted mean of a column. [draws]"""
        return self._draws[:, :, column] @ self.weights

    def level_interval(self, column: int, level: float = 0.95) -> Interval:
        """Interval of the weighted mean of a column of fractions.

        If fewer than ten documents differ from 0, or from 1, Wilson's interval replaces the bootstrap, which
        has zero width at 0 and 100 %.
        """
        draws = self.level_draws_bounded(column)
        interval = percentile_interval(self.level(column), draws, level, METHOD)
        assert interval is not None  # the draws of a column with scores are finite
        return interval

    def level_draws_bounded(self, column: int) -> np.ndarray:
        """Draws of the weighted mean of a column of fractions, as `level_interval` uses them. [draws]"""
        parts = []
        for index, stratum in enumerate(self.strata):
            values, counts = stratum.values[:, column], stratum.counts
            if min(counts[values > 0].sum(), counts[values < 1].sum()) >= FEW:
                parts.append(self._draws[:, index, column])
            else:
                normals = self._rng.standard_normal(len(self._draws))
                parts.append(wilson_draws(float(self.means[index, column]), stratum.documents, normals))
        return self.weights @ np.array(parts)

    def difference(self, first: int, second: int) -> float:
        """Weighted mean of `first` − `second`."""
        return self.level(first) - self.level(second)

    def difference_draws(self, first: int, second: int) -> np.ndarray:
        """Draws of the weighted mean of `first` − `second`. [draws]

        With fewer than ten discordant documents in a stratum, Tango's score interval replaces the bootstrap,
        which would have almost no width; values other than 0 and 1 then count as full disagreements, which
        only widens the interval.
        """
        if (second, first) in self._differences:
            return -self._differences[second, first]
        if (first, second) not in self._differences:
            parts = [self._stratum_difference(index, first, second) for index in range(len(self.strata))]
            self._differences[first, second] = self.weights @ np.array(parts)
        return self._differences[first, second]

    def difference_interval(self, first: int, second: int, level: float = 0.95) -> Interval | None:
        """Interval of `first` − `second`, a paired difference."""
        point = self.difference(first, second)
        return percentile_interval(
            point, self.difference_draws(first, second), level, self.method(first, second)
        )

    def ratio_draws(self, first: int, second: int, centre: int | None = None) -> np.ndarray | None:
        """Draws of mean(first − centre) ÷ mean(second − centre); None if any denominator is not positive."""
        below = self.level_draws(second)
        if centre is not None:
            below = below - self.level_draws(centre)
        if below.min() <= 0 or self.level(second) - (0 if centre is None else self.level(centre)) <= 0:
            return None
        return 1.0 - self.difference_draws(second, first) / below

    def ratio(self, first: int, second: int, centre: int | None = None) -> float:
        """mean(first − centre) ÷ mean(second − centre), of weighted means."""
        offset = 0.0 if centre is None else self.level(centre)
        return (self.level(first) - offset) / (self.level(second) - offset)

    def gap(self, student: tuple[int, int], teacher: tuple[int, int]) -> float:
        """(teacher − student) under generation − (teacher − student) under log-likelihood.

        Args:
            student: columns of the student under log-likelihood and under generation.
            teacher: columns of the teacher.
        """
        return self.difference(teacher[1], student[1]) - self.difference(teacher[0], student[0])

    def gap_draws(self, student: tuple[int, int], teacher: tuple[int, int]) -> np.ndarray:
        """Draws of `gap`. [draws]

        With fewer than ten discordant documents in a stratum, the two drops are drawn independently from
        their score intervals, which is conservative for correlated responses.
        """
        total = np.zeros(len(self._draws))
        for index, weight in enumerate(self.weights):
            values, counts = self.strata[index].values, self.strata[index].counts
            gaps = (values[:, teacher[1]] - values[:, student[1]]) - (
                values[:, teacher[0]] - values[:, student[0]]
            )
            if discordant_count(gaps, counts) >= FEW:
                generation, loglikelihood = (
                    self._draws[:, index, teacher[protocol]] - self._draws[:, index, student[protocol]]
                    for protocol in (1, 0)
                )
            else:
                generation, loglikelihood = (
                    self._score_draws(index, teacher[protocol], student[protocol]) for protocol in (1, 0)
                )
            total += weight * (generation - loglikelihood)
        return total

    def method(self, first: int, second: int) -> str:
        """Name the method of intervals that compare two columns."""
        return METHOD if any(self._is_varied(s, first, second) for s in self.strata) else FEW_METHOD

    def _stratum_difference(self, index: int, first: int, second: int) -> np.ndarray:
        if self._is_varied(self.strata[index], first, second):
            return self._draws[:, index, first] - self._draws[:, index, second]
        return self._score_draws(index, first, second)

    def _is_varied(self, stratum: Stratum, first: int, second: int) -> bool:
        """Whether there are enough discordant documents for a bootstrap of this difference."""
        differences = stratum.values[:, first] - stratum.values[:, second]
        return discordant_count(differences, stratum.counts) >= FEW

    def _score_draws(self, index: int, first: int, second: int) -> np.ndarray:
        stratum = self.strata[index]
        counts = paired_counts(stratum, first, second)
        draws = score_draws(counts, self._rng.standard_normal(len(self._draws)))
        mean = self.means[index, first] - self.means[index, second]
        draws = draws + mean - (counts.wins - counts.losses) / counts.documents
        if stratum.seed_variance.any():
            spread = np.sqrt(stratum.seed_variance[first] + stratum.seed_variance[second])
            draws = draws + spread * self._rng.standard_normal(len(draws))
        return draws
