"""Score rows: every checkpoint on every benchmark, alone and beside its teacher."""

from dataclasses import replace
from math import sqrt

import numpy as np

from evalsuite.foundation import content_hash
from evalsuite.reports.analysis.rows import ScoreRow
from evalsuite.reports.analysis.scopes import Pool
from evalsuite.reports.panel import Cell, Panel
from evalsuite.reports.records import OUTCOMES
from evalsuite.reports.recovery import centred_recovery, log_perplexity_change, recovery
from evalsuite.reports.resampled import Estimate
from evalsuite.reports.statistics.interval import Interval
from evalsuite.reports.statistics.mcnemar import mcnemar_exact
from evalsuite.reports.statistics.paired import disagreements
from evalsuite.reports.statistics.power import minimum_detectable_effect, paired_detectable_effect
from evalsuite.reports.statistics.seeds import seed_effect
from evalsuite.reports.statistics.wilson import normal_quantile, wilson


def score_rows(panel: Panel, pools: dict[str, Pool]) -> list[ScoreRow]:
    """One row per subject and cell, cells in the order of the plan."""
    places = {cell.key: (pool, i) for pool in pools.values() for i, cell in enumerate(pool.cells)}
    rows = []
    for cell in panel.cells:
        for subject in cell.present:
            if cell.is_perplexity:
                rows.append(_perplexity_row(panel, cell, subject))
            else:
                rows.append(_score_row(panel, cell, subject, places.get(cell.key)))
    return rows


def is_binary(cell: Cell) -> bool:
    """Whether every answer of a cell is right or wrong, with one seed."""
    return len(cell.seeds) == 1 and bool(np.isin(cell.answers, (0.0, 1.0)).all())


def _score_row(panel: Panel, cell: Cell, subject: int, place: tuple[Pool, int] | None) -> ScoreRow:
    answers = cell.answers[cell.present.index(subject)]
    effect = seed_effect(answers.T)
    alone = ScoreRow(
        subject=subject,
        benchmark=cell.benchmark.name,
        protocol=cell.protocol,
        context=cell.context,
        documents=len(cell.documents),
        seeds=len(cell.seeds),
        score=score_interval_of(answers),
        seed_deviation=sqrt(effect.between_seeds) if effect else None,
        outcomes=_outcomes(cell, subject),
    )
    teacher = panel.subjects[subject].teacher
    if teacher is None or teacher not in cell.present or place is None or place[0].data is None:
        return alone
    pool, index = place
    data = place[0].data.only([index], [1.0])
    contest = disagreements(pool.strata[index], subject, teacher)
    if is_binary(cell):
        p_value = mcnemar_exact(contest.wins, contest.losses)
        detectable = paired_detectable_effect(contest.contested, contest.documents)
    else:
        p_value = None
        detectable = minimum_detectable_effect(float(data.difference_draws(teacher, subject).std()))
    centred = Estimate(None, "no chance level is known")
    if cell.chance is not None:
        centred = centred_recovery(data, subject, teacher, pool.chance)
    return replace(
        alone,
        deficit=data.difference_interval(teacher, subject),
        recovery=recovery(data, subject, teacher),
        centred=centred,
        wins=contest.wins,
        losses=contest.losses,
        mcnemar=p_value,
        detectable=detectable,
    )


def _perplexity_row(panel: Panel, cell: Cell, subject: int) -> ScoreRow:
    row = cell.present.index(subject)
    losses, units = cell.scores(), cell.units.mean(axis=1)
    level = float(losses[row].sum() / units[row].sum())
    deficit = None
    teacher = cell.row(panel.subjects[subject].teacher)
    if teacher is not None:
        both = [teacher, row]
        rng = np.random.default_rng(int(content_hash([cell.key, subject]), 16))
        deficit = log_perplexity_change(losses[both].T, units[both].T, rng)
    why = "a perplexity has no recovery; its change is beside it"
    return ScoreRow(
        subject=subject,
        benchmark=cell.benchmark.name,
        protocol=cell.protocol,
        context=cell.context,
        documents=len(cell.documents),
        seeds=len(cell.seeds),
        score=_ratio_interval(losses[row], units[row], level),
        deficit=deficit,
        recovery=Estimate(None, why),
        centred=Estimate(None, why),
        outcomes=_outcomes(cell, subject),
    )


def score_interval_of(answers: np.ndarray) -> Interval:
    """Interval of a mean score: Wilson's for right or wrong, else random effects or normal.

    Args:
        answers: [seeds, documents] fractions.
    """
    seeds, documents = answers.shape
    mean = float(answers.mean())
    if seeds == 1 and np.isin(answers, (0.0, 1.0)).all():
        interval = wilson(float(answers.sum()), documents)
        assert interval is not None
        return interval
    effect = seed_effect(answers.T)
    floor = wilson(mean * documents, documents)
    assert floor is not None
    if effect is not None and effect.standard_error > 0:
        interval = effect.interval()
    elif documents > 1 and answers.std() > 0:
        half = normal_quantile(0.975) * float(answers.mean(axis=0).std(ddof=1)) / sqrt(documents)
        interval = Interval(mean, mean - half, mean + half, "normal")
    else:
        return floor  # all answers alike: the bounded worst case instead of a width of nothing
    return Interval(mean, max(0.0, interval.low), min(1.0, interval.high), interval.method)


def _ratio_interval(losses: np.ndarray, units: np.ndarray, level: float) -> Interval:
    """Delta-method interval of Σ losses ÷ Σ units over documents."""
    n = len(losses)
    residual = losses - level * units
    half = 0.0
    if n > 1:
        half = normal_quantile(0.975) * float(residual.std(ddof=1)) / sqrt(n) / float(units.mean())
    return Interval(level, level - half, level + half, "delta method")


def _outcomes(cell: Cell, subject: int) -> dict[str, int]:
    counts = np.bincount(cell.outcomes[cell.present.index(subject)].ravel(), minlength=len(OUTCOMES))
    return {name: int(count) for name, count in zip(OUTCOMES, counts, strict=True)}
