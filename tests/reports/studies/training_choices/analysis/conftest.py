"""Synthetic studies with known effects."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from evalsuite.reports.studies.training_choices.analysis.scores import StudyScores
from evalsuite.reports.studies.training_choices.design import BASE, TEACHER, StudyRun

LEVELS = {
    ("hybrid", BASE): (0.90, 0.80),
    ("hybrid", "ce"): (0.90, 0.60),
    ("hybrid", "uniform"): (0.85, 0.70),
    ("kda", BASE): (0.88, 0.55),
    ("kda", "ce"): (0.89, 0.35),
    ("gdn", BASE): (0.80, 0.40),
}
"""(student, arm) → true accuracy under log-likelihood and generation."""

Make = Callable[..., StudyScores]


@pytest.fixture
def make_scores() -> Make:
    """Return a function that draws right and wrong answers around `levels`."""

    def make(
        levels: Mapping[tuple[str, str], tuple[float, float]] = LEVELS,
        *,
        seeds: int = 3,
        documents: int = 400,
        spread: float = 0.0,
        seed: int = 0,
    ) -> StudyScores:
        generator = np.random.default_rng(seed)
        benchmarks = np.repeat([0, 1], documents)
        runs = tuple(StudyRun(student, arm, number) for student, arm in levels for number in range(seeds))
        values: dict[str, dict[str, np.ndarray]] = {"loglikelihood": {}, "generation": {}}
        for place, protocol in enumerate(values):
            values[protocol][TEACHER] = np.ones(2 * documents)
            for run in runs:
                level = levels[run.student, run.arm][place] + spread * generator.standard_normal()
                values[protocol][run.name] = (generator.random(2 * documents) < level).astype(float)
        chance = {"loglikelihood": np.full(2 * documents, 0.25), "generation": np.zeros(2 * documents)}
        return StudyScores(runs, benchmarks, ("one", "two"), values, chance)

    return make
