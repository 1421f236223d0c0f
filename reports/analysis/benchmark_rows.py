"""Benchmark rows: every checkpoint on every benchmark, alone and compared with its teacher."""

from dataclasses import replace
from math import sqrt

import numpy as np

from evalsuite.foundation import content_hash
from evalsuite.foundation.taxonomy import OUTCOMES
from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.analysis.recovery import chance_normalized_recovery, log_perplexity_change, recovery
from evalsuite.reports.analysis.result_tensor import Cell, ResultTensor
from evalsuite.reports.analysis.rows import BenchmarkRow
from evalsuite.reports.analysis.scopes import Pool
from evalsuite.reports.statistics.hypothesis_tests import (
    mcnemar_exact,
    minimum_detectable_effect,
    paired_minimum_detectable_effect,
)
from evalsuite.reports.statistics.intervals import Interval, normal_quantile, wilson
from evalsuite.reports.statistics.paired import paired_counts
from evalsuite.reports.statistics.seeds import seed_effect


def benchmark_rows(tensor: ResultTensor, pools: dict[str, Pool]) -> list[BenchmarkRow]:
    """One row per checkpoint and cell, cells in the order of the plan."""
    places = {(c.key, c.present): (pool, i) for pool in pools.values() for i, c in enumerate(pool.cells)}
    rows = []
    for cell in tensor.cells:
        for checkpoint in cell.present:
            if cell.is_perplexity:
                rows.append(_perplexity_row(tensor, cell, checkpoint))
            else:
                rows.append(_benchmark_row(tensor, cell, checkpoint, places.get((cell.key, cell.present))))
    return rows


def is_binary(cell: Cell) -> bool:
    """Whether every score of a cell is 0 or 1, with one seed."""
    return len(cell.seeds) == 1 and bool(np.isin(cell.values, (0.0, 1.0)).all())


def _benchmark_row(
    tensor: ResultTensor, cell: Cell, checkpoint: int, pool_index: tuple[Pool, int] | None
) -> BenchmarkRow:
    values = cell.values[cell.present.index(checkpoint)]
    effect = seed_effect(values.T)
    base = BenchmarkRow(
        checkpoint=checkpoint,
        benchmark=cell.benchmark.name,
        protocol=cell.protocol,
        context=cell.context,
        documents=len(cell.documents),
        seeds=len(cell.seeds),
        score=score_interval_of(values),
        seed_deviation=sqrt(effect.between_seeds) if effect else None,
        outcomes=_outcomes(cell, checkpoint),
    )
    teacher = tensor.checkpoints[checkpoint].teacher
    if teacher is None or teacher not in cell.present or pool_index is None or pool_index[0].data is None:
        return base
    pool, index = pool_index
    data = pool_index[0].data.only([index], [1.0])
    counts = paired_counts(pool.strata[index], checkpoint, teacher)
    if is_binary(cell):
        p_value = mcnemar_exact(counts.wins, counts.losses)
        mde = paired_minimum_detectable_effect(counts.discordant, counts.documents)
    else:
        p_value = None
        mde = minimum_detectable_effect(float(data.difference_draws(teacher, checkpoint).std()))
    normalized = Estimate(None, "no chance level is known")
    if cell.chance is not None:
        normalized = chance_normalized_recovery(data, checkpoint, teacher, pool.chance)
    return replace(
        base,
        drop=data.difference_interval(teacher, checkpoint),
        recovery=recovery(data, checkpoint, teacher),
        chance_normalized_recovery=normalized,
        wins=counts.wins,
        losses=counts.losses,
        mcnemar=p_value,
        mde=mde,
    )


def _perplexity_row(tensor: ResultTensor, cell: Cell, checkpoint: int) -> BenchmarkRow:
    row = cell.present.index(checkpoint)
    losses, units = cell.scores(), cell.units.mean(axis=1)
    level = float(losses[row].sum() / units[row].sum())
    drop = None
    teacher = cell.row(tensor.checkpoints[checkpoint].teacher)
    if teacher is not None:
        both = [teacher, row]
        rng = np.random.default_rng(int(content_hash([cell.key, checkpoint]), 16))
        drop = log_perplexity_change(losses[both].T, units[both].T, rng)
    why = "a perplexity has no recovery; see its drop in nats"
    return BenchmarkRow(
        checkpoint=checkpoint,
        benchmark=cell.benchmark.name,
        protocol=cell.protocol,
        context=cell.context,
        documents=len(cell.documents),
        seeds=len(cell.seeds),
        score=_ratio_interval(losses[row], units[row], level),
        drop=drop,
        recovery=Estimate(None, why),
        chance_normalized_recovery=Estimate(None, why),
        outcomes=_outcomes(cell, checkpoint),
    )


def score_interval_of(values: np.ndarray) -> Interval:
    """Interval of a mean score: Wilson's for binary scores, else random effects or normal.

    Args:
        values: [seeds, documents] fractions.
    """
    seeds, documents = values.shape
    mean = float(values.mean())
    if seeds == 1 and np.isin(values, (0.0, 1.0)).all():
        interval = wilson(float(values.sum()), documents)
        assert interval is not None
        return interval
    effect = seed_effect(values.T)
    floor = wilson(mean * documents, documents)
    assert floor is not None
    if effect is not None and effect.standard_error > 0:
        interval = effect.interval()
    elif documents > 1 and values.std() > 0:
        half = normal_quantile(0.975) * float(values.mean(axis=0).std(ddof=1)) / sqrt(documents)
        interval = Interval(mean, mean - half, mean + half, "normal")
    else:
        return floor  # all values equal: the bounded worst case instead of zero width
    return Interval(mean, max(0.0, interval.low), min(1.0, interval.high), interval.method)


def _ratio_interval(losses: np.ndarray, units: np.ndarray, level: float) -> Interval:
    """Delta-method interval of Σ losses ÷ Σ units over documents."""
    n = len(losses)
    residual = losses - level * units
    half = 0.0
    if n > 1:
        half = normal_quantile(0.975) * float(residual.std(ddof=1)) / sqrt(n) / float(units.mean())
    return Interval(level, level - half, level + half, "delta method")


def _outcomes(cell: Cell, checkpoint: int) -> dict[str, int]:
    counts = np.bincount(cell.outcomes[cell.present.index(checkpoint)].ravel(), minlength=len(OUTCOMES))
    return {name: int(count) for name, count in zip(OUTCOMES, counts, strict=True)}
