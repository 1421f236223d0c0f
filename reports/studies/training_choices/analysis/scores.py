"""Scores of a study: runs × documents under both protocols, on the same documents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np

from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports.analysis.replicates import RunSpread, pooled_spread
from evalsuite.reports.statistics.intervals import Interval, student_quantile
from evalsuite.reports.studies.training_choices.design import TEACHER, StudyRun


@dataclass(frozen=True)
class StudyScores:
    """Scores of a study on documents that both protocols have.

    Args:
        runs: the planned runs, finished or not.
        benchmarks: of each document, an index into `names`. [documents]
        names: the admitted benchmarks.
        values: protocol → run name (or `TEACHER`) → scores from 0 to 1; a run without scores is missing.
            [documents]
        chance: protocol → the chance level of each document, from 0 to 1. [documents]
    """

    runs: tuple[StudyRun, ...]
    benchmarks: np.ndarray
    names: tuple[str, ...]
    values: Mapping[str, Mapping[str, np.ndarray]]
    chance: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        if set(np.unique(self.benchmarks)) != set(range(len(self.names))):
            raise ValueError("every benchmark needs documents")

    @property
    def students(self) -> list[str]:
        """The students of the planned runs."""
        return list(dict.fromkeys(run.student for run in self.runs))

    @cached_property
    def weights(self) -> np.ndarray:
        """Weight of each document in the macro average. [documents]"""
        counts = np.bincount(self.benchmarks, minlength=len(self.names))
        return np.asarray(1.0 / (len(self.names) * counts[self.benchmarks]))

    def on(self, benchmark: str) -> "StudyScores":
        """Return the scores on one of the benchmarks alone."""
        here = self.benchmarks == self.names.index(benchmark)
        values = {
            protocol: {name: found[here] for name, found in runs.items()}
            for protocol, runs in self.values.items()
        }
        chance: dict[str, np.ndarray] = {protocol: found[here] for protocol, found in self.chance.items()}
        return StudyScores(self.runs, np.zeros(int(here.sum()), int), (benchmark,), values, chance)

    def teacher_lead(self, protocol: str) -> float:
        """Return the teacher's lead over chance: a macro average, as a fraction of 1."""
        return float(self.weights @ (self.values[protocol][TEACHER] - self.chance[protocol]))

    def has(self, run: StudyRun) -> bool:
        """Return whether a run has scores under both protocols."""
        return all(run.name in self.values[protocol] for protocol in PROTOCOLS)

    @property
    def missing(self) -> tuple[StudyRun, ...]:
        """Planned runs without scores."""
        return tuple(run for run in self.runs if not self.has(run))

    def of(self, student: str, arm: str) -> tuple[StudyRun, ...]:
        """Return the finished runs of one student and arm."""
        return tuple(run for run in self.runs if (run.student, run.arm) == (student, arm) and self.has(run))

    def mean(self, protocol: str, runs: Sequence[StudyRun]) -> np.ndarray:
        """Return the mean score of each document over runs. [documents]"""
        return np.asarray(np.mean([self.values[protocol][run.name] for run in runs], axis=0))

    def spread(self, difference: Mapping[str, float]) -> RunSpread | None:
        """Return the variance between the runs of one student and arm, pooled over all of them.

        Args:
            difference: protocol → its weight in the average whose variance this is.

        Returns:
            None if no arm has two finished runs.
        """
        kinds = dict.fromkeys((run.student, run.arm) for run in self.runs)
        levels = [
            [
                float(sum(k * self.weights @ self.values[p][run.name] for p, k in difference.items()))
                for run in self.of(*kind)
            ]
            for kind in kinds
        ]
        return pooled_spread(levels)

    def contrast(
        self, protocol: str, weights: Mapping[tuple[str, str], float], *, level: float = 0.95
    ) -> Interval | None:
        """Return a weighted sum of mean scores with its interval over runs and documents.

        Args:
            weights: (student, arm) with finished runs → weight.
            level: coverage of the interval.

        Returns:
            None without two runs of any arm.
        """
        total, run_weight = np.zeros(len(self.benchmarks)), 0.0
        for (student, arm), weight in weights.items():
            runs = self.of(student, arm)
            total += weight * self.mean(protocol, runs)
            run_weight += weight**2 / len(runs)
        return self.interval(total, {protocol: 1.0}, run_weight, level=level)

    def interval(
        self,
        contrast: np.ndarray,
        difference: Mapping[str, float],
        run_weight: float,
        *,
        level: float = 0.95,
    ) -> Interval | None:
        """Return the macro average of per-document contrasts with its interval over runs and documents.

        Documents: the stratified variance of the mean. Runs: the pooled variance × `run_weight`. Both are
        added, with Satterthwaite's degrees of freedom. The documents' variance contains the disagreement of
        single runs on single documents, so the interval is a little wide.

        Args:
            contrast: [documents]
            difference: as for `spread`.
            run_weight: Σ (weight of a run)², such as 1/m for a mean of m runs.
            level: coverage of the interval.

        Returns:
            None without two runs of any arm.
        """
        spread = self.spread(difference)
        if spread is None:
            return None
        parts = [(spread.variance * run_weight, float(spread.degrees))]
        for index in range(len(self.names)):
            own = contrast[self.benchmarks == index]
            if len(own) > 1:
                share = 1 / len(self.names)
                parts.append((share**2 * float(own.var(ddof=1)) / len(own), len(own) - 1.0))
        variance = sum(part for part, _ in parts)
        point = float(contrast @ self.weights)
        if variance == 0:
            return Interval(point, point, point, spread.method)
        degrees = variance**2 / sum(part**2 / freedom for part, freedom in parts)
        half = student_quantile(degrees, (1 + level) / 2) * sqrt(variance)
        return Interval(point, point - half, point + half, spread.method)
