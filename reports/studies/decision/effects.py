"""Contrasts of two ways of measuring, in shares of the teacher's lead over chance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

DRAWS = 2000
Floats = NDArray[np.float64]


class Run(NamedTuple):
    """A checkpoint: a student of the recipe, and the seed of its training."""

    student: str
    seed: int


@dataclass(frozen=True)
class Cell:
    """Scores of the same documents by every way.

    `teacher` maps a way to scores [documents]; `runs` maps a run to the same. `chance` is that of each way.
    """

    name: str
    teacher: Mapping[str, Floats]
    runs: Mapping[Run, Mapping[str, Floats]]
    chance: Mapping[str, float]

    @property
    def documents(self) -> int:
        """Number of documents."""
        return len(next(iter(self.teacher.values())))

    def lead(self, way: str, confidence: float = 0.95) -> tuple[float, float]:
        """Return the teacher's lead over chance in points, and its lower end (t over documents)."""
        scores = self.teacher[way] - self.chance[way]
        error = scores.std(ddof=1) / np.sqrt(len(scores))
        return 100 * scores.mean(), 100 * (
            scores.mean() - error * stats.t.ppf((1 + confidence) / 2, len(scores) - 1)
        )

    def shares(self, run: Run, way: str, weights: Floats) -> Floats:
        """Percent of the teacher's lead that a run keeps, one per row of `weights` [draws, documents]."""
        lead = weights @ self.teacher[way] - self.chance[way]
        with np.errstate(divide="ignore", invalid="ignore"):
            kept: Floats = 100 * (weights @ self.runs[run][way] - self.chance[way]) / lead
        return kept

    def share(self, run: Run, way: str) -> float:
        """The same with equal weights of all documents."""
        return float(self.shares(run, way, np.full((1, self.documents), 1 / self.documents))[0])


def mean_share(cells: Sequence[Cell], runs: Sequence[Run], way: str) -> float:
    """Mean share over cells and runs, in percent of the teacher's lead."""
    return float(np.mean([cell.share(run, way) for cell in cells for run in runs]))


@dataclass(frozen=True)
class Effect:
    """A contrast of a family, in points of the lead: the second way's share minus that of the first."""

    estimate: float
    low: float
    high: float
    p: float
    run_sd: float
    """Standard deviation between runs of one student."""
    document_error: float
    """Standard error over documents."""
    df: int
    runs: int
    cells: tuple[str, ...]

    @property
    def error(self) -> float:
        """Standard error over runs and documents."""
        return (self.high - self.low) / (2 * float(stats.t.ppf(0.975, self.df)))


def effect(
    cells: Sequence[Cell],
    runs: Sequence[Run],
    ways: Sequence[str],
    weights: Mapping[str, float] | None = None,
    seed: int = 0,
    draws: int = DRAWS,
) -> Effect:
    """Return the contrast of `ways` over `cells`, a mean over students of the mean over their runs.

    The contrast is the share by the last way, minus that by the one before if there are two. `weights` of
    the students replace their mean: 1 and -1 give a difference of two.

    The variance is that of runs within students, pooled, plus that over documents (bootstrap, one draw for
    all ways and checkpoints of a cell); the interval is Student's t with the degrees of freedom of the runs.

    Raises:
        ValueError: no cell, or no student with two runs.
    """
    if not cells:
        raise ValueError("no cell is admitted")
    students = sorted({run.student for run in runs})
    df = len(runs) - len(students)
    if df < 1:
        raise ValueError("a spread between runs needs a student with two runs")
    random = np.random.default_rng(seed)
    points = np.zeros(len(runs))
    drawn = np.zeros((len(runs), draws))
    for cell in cells:
        equal = np.full(cell.documents, 1 / cell.documents)
        resampled = random.multinomial(cell.documents, equal, draws) / cell.documents
        for number, run in enumerate(runs):
            for sign, way in zip((1, -1), reversed(ways), strict=False):
                points[number] += sign * cell.share(run, way) / len(cells)
                drawn[number] += sign * cell.shares(run, way, resampled) / len(cells)
    groups = [[n for n, run in enumerate(runs) if run.student == student] for student in students]
    share = np.array([weights[each] if weights else 1 / len(students) for each in students])
    spread = sum(((points[group] - points[group].mean()) ** 2).sum() for group in groups) / df
    estimate = float(share @ [points[group].mean() for group in groups])
    of_runs = sum(share**2 * [spread / len(group) for group in groups])
    document_error = float((share @ [drawn[group].mean(0) for group in groups]).std(ddof=1))
    error = float(np.sqrt(of_runs + document_error**2))
    half = error * float(stats.t.ppf(0.975, df))
    p = float(2 * stats.t.sf(abs(estimate) / error, df)) if error else float(estimate == 0)
    names = tuple(cell.name for cell in cells)
    return Effect(
        estimate,
        estimate - half,
        estimate + half,
        p,
        float(np.sqrt(spread)),
        document_error,
        df,
        len(runs),
        names,
    )


def between(cells: Sequence[Cell], runs: Sequence[Run], ways: tuple[str, str]) -> list[Cell]:
    """Return the cells where the mean share of `runs` is between 5 and 95 % in one of the two ways."""
    return [cell for cell in cells if any(5 <= mean_share([cell], runs, way) <= 95 for way in ways)]


def detectable(
    run_sd: float, document_error: float, students: int, runs: int, alpha: float, tests: int, beta: float
) -> float:
    """Return the smallest contrast, in points, that the first test of Holm's finds with power 1 - beta.

    By the noncentral t: at 4 degrees of freedom and 8 tests the sum of two quantiles, which
    `Contrast.detectable` takes for many documents, is 8 % too small.

    Args:
        run_sd: standard deviation of the contrast between runs of one student, in points.
        document_error: its standard error over documents, in points.
        students: students of the family.
        runs: runs of each.
        alpha: error of the whole procedure, two-sided.
        tests: tests that are corrected together.
        beta: one minus the power.
    """
    df = students * (runs - 1)
    error = np.sqrt(run_sd**2 / (students * runs) + document_error**2)
    critical = stats.t.ppf(1 - alpha / tests / 2, df)
    # The noncentral t has no closed inverse in its shift; the power grows with it.
    low, high = 0.0, 100.0
    for _ in range(60):
        shift = (low + high) / 2
        power = stats.nct.sf(critical, df, shift)  # the other side is below 1e-6 where power matters
        low, high = (low, shift) if power >= 1 - beta else (shift, high)
    return float(high * error)
