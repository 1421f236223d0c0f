"""Percentage right by the size of a student's state: a line over its runs, on each benchmark.

A run is one point: log₂ of the bytes of state of its student, and its score. The slope of the line of least
squares is a weighted sum of the runs' scores, and its interval that of such a sum (`StudyScores.interval`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import log2
from statistics import fmean
from typing import Literal

import numpy as np

from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports.measures.scaling.fits import MIN_POINTS, misfit, slope_weights
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.studies.training_choices.analysis.scores import StudyScores

END = 0.01
"""A score this close to chance or below is at the floor; this close to 1, at the ceiling."""

Trend = Literal["rises", "falls", "not decided", "at the floor", "at the ceiling"]


@dataclass(frozen=True, slots=True)
class StateSlope:
    """The line of one student's runs on one benchmark under one protocol; scores from 0 to 1."""

    student: str
    benchmark: str
    protocol: str
    points: tuple[tuple[int, float], ...]
    """Bytes of state and score of each run."""
    slope: Interval
    """Score per doubling of the state, over runs with other seeds and other documents."""
    misfit: float
    """Root mean square distance of the runs' scores from the line."""
    at_floor: int
    """Number of its runs at the floor."""
    at_ceiling: int
    """Number of its runs at the ceiling."""

    @property
    def line(self) -> tuple[tuple[int, float], tuple[int, float]]:
        """Bytes of state and fitted score at the smallest and at the largest state."""
        sizes, scores = zip(*self.points, strict=True)
        x, y = fmean(map(log2, sizes)), fmean(scores)
        first, last = ((size, y + self.slope.point * (log2(size) - x)) for size in (min(sizes), max(sizes)))
        return first, last

    @property
    def trend(self) -> Trend:
        """What the score does as the state grows; undecided where the slope's interval contains 0."""
        if self.at_ceiling == len(self.points):
            return "at the ceiling"
        if self.at_floor == len(self.points):
            return "at the floor"
        if not self.slope.excludes_zero:
            return "not decided"
        return "rises" if self.slope.point > 0 else "falls"


def state_slopes(scores: StudyScores, states: Mapping[str, int]) -> list[StateSlope]:
    """Return the line of every student on every benchmark under every protocol.

    The interval of a slope covers runs, by the variance between runs of one student and arm, pooled over all
    of them, and documents. How far the runs' means lie from the line is not in it. Students with states of
    fewer than three sizes are left out.

    Args:
        scores: of the study.
        states: name of each finished run → bytes of state of its student.
    """
    points: dict[str, list[str]] = {}
    for run in scores.runs:
        if scores.has(run):
            points.setdefault(run.student, []).append(run.name)
    found = []
    for benchmark, protocol, student in product(scores.names, PROTOCOLS, points):
        own, sizes = scores.on(benchmark), [states[name] for name in points[student]]
        if len(set(sizes)) < MIN_POINTS:
            continue
        values = np.array([own.values[protocol][name] for name in points[student]])
        x = np.log2(sizes)
        weights = slope_weights(x)
        slope = own.interval(weights @ values, {protocol: 1.0}, float(weights @ weights))
        if slope is None:
            continue
        levels = values.mean(axis=1)
        found.append(
            StateSlope(
                student,
                benchmark,
                protocol,
                tuple(zip(sizes, levels.tolist(), strict=True)),
                slope,
                misfit(levels.mean() + slope.point * (x - x.mean()), levels),
                at_floor=int((levels <= own.chance[protocol].mean() + END).sum()),
                at_ceiling=int((levels >= 1 - END).sum()),
            )
        )
    return found
