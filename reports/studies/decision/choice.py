"""What a choice of the best student by one measure costs by another."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from evalsuite.reports.studies.decision.effects import Floats, Run


class Choice(NamedTuple):
    """The student that a measure chooses, and what it lacks of the best one."""

    measure: str
    run: Run
    regret: float
    low: float
    high: float


def choose(
    measures: Mapping[str, Mapping[Run, float]],
    target: Mapping[Run, Floats],
    *,
    seed: int = 0,
    draws: int = 2000,
) -> list[Choice]:
    """Return the choice by each measure and its regret in the mean of `target`, in points.

    Args:
        measures: name -> score of every run; the highest is chosen, the first of equal ones.
        target: 0 or 1 per document [documents], the same documents for every run.
        seed: of the bootstrap, which draws runs within students and documents.
        draws: of the bootstrap.

    Raises:
        ValueError: a measure lacks a run of the target.
    """
    runs = list(target)
    for name, values in measures.items():
        if missing := [run for run in runs if run not in values]:
            raise ValueError(f"{name}: no score of {missing[0].student}, seed {missing[0].seed}")
    found = np.array([target[run] for run in runs])
    order = {name: np.array([values[run] for run in runs]) for name, values in measures.items()}
    random = np.random.default_rng(seed)
    groups = _groups(runs)
    regrets: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(draws):
        drawn = np.concatenate([random.choice(group, len(group)) for group in groups])
        documents = random.integers(found.shape[1], size=found.shape[1])
        rates = 100 * found[np.ix_(drawn, documents)].mean(1)
        for name, scores in order.items():
            regrets[name].append(float(rates.max() - rates[scores[drawn].argmax()]))
    rates = 100 * found.mean(1)
    choices = []
    for name, scores in order.items():
        chosen = int(scores.argmax())
        low, high = np.percentile(regrets[name], [2.5, 97.5])
        regret = float(rates.max() - rates[chosen])
        choices.append(Choice(name, runs[chosen], regret, float(low), float(high)))
    return choices


def _groups(runs: Sequence[Run]) -> list[list[int]]:
    students = dict.fromkeys(run.student for run in runs)
    return [[place for place, run in enumerate(runs) if run.student == student] for student in students]
