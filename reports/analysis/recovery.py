"""Recovery, chance-normalized recovery, win-or-tie rate and log-perplexity change of a student."""

import numpy as np

from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample, Estimate
from evalsuite.reports.statistics.bootstrap import DRAWS, percentile_interval
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.statistics.paired import paired_counts


def recovery(data: BootstrapSample, student: int, teacher: int, level: float = 0.95) -> Estimate:
    """Student ÷ teacher, the ratio of macro averages on the same documents (Table 2 of arXiv 2504.14366).

    Args:
        data: strata in which both are columns.
        student: its column.
        teacher: its column.
        level: confidence level of the interval.
    """
    draws = data.ratio_draws(student, teacher)
    if draws is None:
        return Estimate(None, "the teacher's score is not above zero")
    point = data.ratio(student, teacher)
    return Estimate(percentile_interval(point, draws, level, data.method(student, teacher)))


def chance_normalized_recovery(
    data: BootstrapSample, student: int, teacher: int, chance: int, level: float = 0.95
) -> Estimate:
    """Σ(s−c) ÷ Σ(t−c), with the chance level c of each document in column `chance`.

    Undefined (not clipped) if any resample of the documents puts the teacher at or below chance.
    """
    draws = data.ratio_draws(student, teacher, chance)
    if draws is None:
        return Estimate(None, "the teacher is not above chance")
    point = data.ratio(student, teacher, chance)
    return Estimate(percentile_interval(point, draws, level, data.method(student, teacher)))


def win_or_tie_rate(data: BootstrapSample, student: int, teacher: int) -> float:
    """Share of documents on which the student scores at least as high as the teacher, macro average."""
    shares = []
    for stratum in data.strata:
        counts = paired_counts(stratum, student, teacher)
        shares.append((counts.wins + counts.ties) / counts.documents)
    return float(data.weights @ np.array(shares))


def log_perplexity_change(
    losses: np.ndarray, units: np.ndarray, rng: np.random.Generator, draws: int = DRAWS
) -> Interval | None:
    """Student − teacher log-perplexity, with a paired bootstrap interval over documents.

    Args:
        losses: [documents, 2] negative log-likelihoods in nats: teacher, student.
        units: [documents, 2] number of units (words, bytes) of each document.
        rng: source of the draws.
        draws: how many.

    Returns:
        The change in nats per unit, positive if the student is worse. None for fewer than two documents.
    """
    n = len(losses)
    if n < 2:
        return None
    levels = losses.sum(axis=0) / units.sum(axis=0)
    changes = np.empty(draws)
    step = max(1, 2_000_000 // n)
    for start in range(0, draws, step):
        size = min(step, draws - start)
        counts = rng.multinomial(n, np.full(n, 1 / n), size=size)
        both = (counts @ losses) / (counts @ units)
        changes[start : start + size] = both[:, 1] - both[:, 0]
    return percentile_interval(float(levels[1] - levels[0]), changes, method="paired bootstrap")
