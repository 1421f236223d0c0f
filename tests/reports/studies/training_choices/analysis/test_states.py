"""Slopes of scores by bytes of state, on synthetic studies with a known line."""

from math import log2, sqrt

import numpy as np
import pytest

from evalsuite.reports.studies.training_choices.analysis.scores import StudyScores
from evalsuite.reports.studies.training_choices.analysis.states import state_slopes
from evalsuite.reports.studies.training_choices.design import TEACHER, StudyRun

T = 3.182446
"""97.5 % quantile of Student's t with 3 degrees of freedom."""
SIZES = (1000, 2000, 4000)


def _study(levels: dict[int, tuple[float, ...]]) -> tuple[StudyScores, dict[str, int]]:
    """One student whose runs have the same score on every document, and another benchmark at chance."""
    runs = {StudyRun("kda", str(size), seed): y for size, ys in levels.items() for seed, y in enumerate(ys)}
    benchmarks = np.repeat([0, 1], 10)
    values = {TEACHER: np.ones(20)} | {
        run.name: np.where(benchmarks == 0, y, 0.25) for run, y in runs.items()
    }
    both = ("loglikelihood", "generation")
    scores = StudyScores(
        tuple(runs),
        benchmarks,
        ("lookup", "chance"),
        dict.fromkeys(both, values),
        dict.fromkeys(both, np.full(20, 0.25)),
    )
    return scores, {run.name: int(run.arm) for run in runs}


@pytest.mark.parametrize(
    ("slope", "noise", "trend"), [(0.1, 0.02, "rises"), (-0.1, 0.02, "falls"), (0.01, 0.02, "not decided")]
)
def test_a_known_line_has_its_slope_and_the_interval_of_its_runs(
    slope: float, noise: float, trend: str
) -> None:
    """Two runs of each size, `noise` above and below the line: the variance between runs is 2 · noise²."""
    line = {size: 0.6 + slope * log2(size / 2000) for size in SIZES}
    scores, states = _study({size: (y - noise, y + noise) for size, y in line.items()})
    first = state_slopes(scores, states)[0]
    half = T * sqrt(2 * noise**2 / 4)
    assert (first.slope.point, first.slope.low, first.slope.high) == pytest.approx(
        (slope, slope - half, slope + half), abs=1e-6
    )
    assert first.line == ((1000, pytest.approx(line[1000])), (4000, pytest.approx(line[4000])))
    assert (first.misfit, first.trend) == (pytest.approx(noise), trend)


def test_a_size_with_fewer_runs_counts_by_its_runs() -> None:
    scores, states = _study({1000: (0.3, 0.3), 2000: (0.5, 0.5), 4000: (0.4,)})
    found = state_slopes(scores, states)[0]
    x, y = [0, 0, 1, 1, 2], [0.3, 0.3, 0.5, 0.5, 0.4]
    assert found.slope.point == pytest.approx(np.polyfit(x, y, 1)[0])
    assert len(found.points) == 5


def test_runs_at_an_end_have_no_trend() -> None:
    scores, states = _study({1000: (0.99, 1.0), 2000: (1.0, 1.0), 4000: (1.0, 1.0)})
    found = {(each.benchmark, each.trend) for each in state_slopes(scores, states)}
    assert found == {("lookup", "at the ceiling"), ("chance", "at the floor")}


def test_two_sizes_are_no_line() -> None:
    assert state_slopes(*_study({1000: (0.3, 0.4), 2000: (0.5, 0.6)})) == []
