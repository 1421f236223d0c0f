"""Benchmark rows: every checkpoint on every benchmark, alone and compared with its teacher."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np

from evalsuite.foundation import content_hash
from evalsuite.foundation.taxonomy import OUTCOMES
from evalsuite.reports.analysis.bootstrap_sample import METHOD, Estimate
from evalsuite.reports.analysis.cells import Cell
from evalsuite.reports.analysis.counting import holm_once
from evalsuite.reports.analysis.recovery import chance_normalized_recovery, log_perplexity, recovery
from evalsuite.reports.analysis.result_tensor import ResultTensor
from evalsuite.reports.analysis.rows import BenchmarkRow, DropRow
from evalsuite.reports.analysis.scopes import Pool
from evalsuite.reports.statistics.contrasts import Contrast
from evalsuite.reports.statistics.hypothesis_tests import (
    mcnemar_mid_p,
    paired_minimum_detectable_effect,
)
from evalsuite.reports.statistics.intervals import Interval, wilson
from evalsuite.reports.statistics.paired import paired_counts
from evalsuite.reports.statistics.seeds import seed_effect


def benchmark_rows(tensor: ResultTensor, pools: Mapping[str, Pool]) -> list[BenchmarkRow]:
    """One row per checkpoint and cell, cells in the order of the plan."""
    places = {id(cell): (pool, i) for pool in pools.values() for i, cell in enumerate(pool.cells)}
    rows = []
    for cell in tensor.cells:
        for checkpoint in cell.present:
            if cell.is_perplexity:
                rows.append(_perplexity_row(tensor, cell, checkpoint))
            else:
                rows.append(_benchmark_row(tensor, cell, checkpoint, places.get(id(cell))))
    return rows


def drop_rows(tensor: ResultTensor, pools: Mapping[str, Pool]) -> list[DropRow]:
    """One row per student, benchmark and protocol, with Holm's correction within each protocol."""
    found = []
    for pool in pools.values():
        names = dict.fromkeys(cell.benchmark.name for cell in tensor.cells if cell.protocol == pool.protocol)
        rows = [
            row
            for student, checkpoint in enumerate(tensor.checkpoints)
            if checkpoint.teacher is not None
            for name in names
            if (row := _drop_row(pool, student, checkpoint.teacher, name)) is not None
        ]
        adjusted = holm_once([row.p for row in rows], _merged(pool, rows))
        found += [replace(row, p_holm=p) for row, p in zip(rows, adjusted, strict=True)]
    return found


def _merged(pool: Pool, rows: Sequence[DropRow]) -> dict[int, int]:
    """Index of each row whose requests are those of another row of the same student → index of that one."""
    place = {(row.checkpoint, row.benchmark): i for i, row in enumerate(rows)}
    cells = [cell for cell in pool.tensor.cells if cell.protocol == pool.protocol]
    found = {}
    for student in dict.fromkeys(row.checkpoint for row in rows):
        mine = [cell for cell in cells if student in cell.present and (student, cell.benchmark.name) in place]
        for name, other in pool.tensor.counting.benchmarks(mine).items():
            found[place[student, name]] = place[student, other]
    return found


def _drop_row(pool: Pool, student: int, teacher: int, name: str) -> DropRow | None:
    cells = [i for i, cell in enumerate(pool.cells) if cell.benchmark.name == name]
    data = pool.of(pool.scope(name, cells), [student, teacher])
    if data is not None:
        terms = {teacher: 1.0, student: -1.0}
        contrast, method = data.contrast(terms), data.method(terms)
    else:
        both = {student, teacher}
        perplexities = [
            cell
            for cell in pool.tensor.find(name, pool.protocol)
            if cell.is_perplexity and both <= set(cell.present)
        ]
        change = _log_perplexity(pool.tensor, perplexities[0], [student, teacher]) if perplexities else None
        if change is None:
            return None
        contrast, method = change, METHOD
    return DropRow(
        checkpoint=student,
        benchmark=name,
        protocol=pool.protocol,
        drop=contrast.interval(method=method),
        p=contrast.p_value(),
        p_holm=1.0,
    )


def is_binary(cell: Cell) -> bool:
    """Whether every score of a cell is 0 or 1, with one seed, on independent documents."""
    return len(cell.seeds) == 1 and cell.clusters is None and bool(np.isin(cell.values, (0.0, 1.0)).all())


def _benchmark_row(
    tensor: ResultTensor, cell: Cell, checkpoint: int, pool_index: tuple[Pool, int] | None
) -> BenchmarkRow:
    values = cell.values[cell.present.index(checkpoint)]
    effect = seed_effect(values.T)
    data = None if pool_index is None else pool_index[0].sample((pool_index[1],))
    level = None if data is None else data.level_contrast(checkpoint)
    base = _row(
        cell,
        checkpoint,
        score=_score_interval(cell, values, level),
        seed_deviation=sqrt(effect.between_seeds) if effect else None,
    )
    teacher = tensor.checkpoints[checkpoint].teacher
    if teacher is None or teacher not in cell.present or pool_index is None or data is None:
        return base
    scores = cell.scores()
    counts = paired_counts(scores[cell.present.index(checkpoint)], scores[cell.present.index(teacher)])
    terms = {teacher: 1.0, checkpoint: -1.0}
    drop = data.contrast(terms)
    if is_binary(cell):
        p_value = mcnemar_mid_p(counts.wins, counts.losses)
        mde = paired_minimum_detectable_effect(counts.discordant, counts.documents)
    else:
        p_value = None
        mde = drop.detectable()
    normalized = Estimate(None, "no chance level is known")
    if cell.chance is not None:
        normalized = chance_normalized_recovery(data, checkpoint, teacher, pool_index[0].chance)
    return replace(
        base,
        drop=drop.interval(method=data.method(terms)),
        recovery=recovery(data, checkpoint, teacher),
        chance_normalized_recovery=normalized,
        wins=counts.wins,
        losses=counts.losses,
        mcnemar=p_value,
        mde=mde,
    )


def _score_interval(cell: Cell, values: np.ndarray, level: Contrast | None) -> Interval:
    """Interval of a mean score in [0, 1]; Wilson's in closed form for right and wrong answers.

    Args:
        cell: the cell.
        values: [seeds, documents] of one checkpoint.
        level: its mean with draws; None for fewer than two documents or clusters.
    """
    is_exact = len(values) == 1 and cell.clusters is None and bool(np.isin(values, (0.0, 1.0)).all())
    if level is None or is_exact:
        interval = wilson(min(float(values.mean()), 1.0) * values.shape[1], values.shape[1])
        assert interval is not None  # a cell has documents
        return interval
    return level.interval(method="bootstrap in [0, 1]")


def _perplexity_row(tensor: ResultTensor, cell: Cell, checkpoint: int) -> BenchmarkRow:
    row = cell.present.index(checkpoint)
    losses, units = cell.scores(), cell.units.mean(axis=1)
    level = float(losses[row].sum() / units[row].sum())
    own = _log_perplexity(tensor, cell, [checkpoint])
    drop = None
    teacher = tensor.checkpoints[checkpoint].teacher
    if teacher is not None and teacher in cell.present:
        change = _log_perplexity(tensor, cell, [checkpoint, teacher])
        drop = None if change is None else change.interval(method=METHOD)
    why = "a perplexity has no recovery; see its drop in nats"
    return _row(
        cell,
        checkpoint,
        score=Interval(level, level, level) if own is None else own.interval(method="bootstrap"),
        drop=drop,
        recovery=Estimate(None, why),
        chance_normalized_recovery=Estimate(None, why),
    )


def _row(cell: Cell, checkpoint: int, **measured: Any) -> BenchmarkRow:
    """The row of a checkpoint, with what was measured."""
    return BenchmarkRow(
        checkpoint=checkpoint,
        benchmark=cell.benchmark.name,
        protocol=cell.protocol,
        context=cell.context,
        documents=len(cell.documents),
        seeds=len(cell.seeds),
        outcomes=_outcomes(cell, checkpoint),
        out_of_distribution=_flagged(cell, checkpoint, "out_of_distribution"),
        closed_by_force=_flagged(cell, checkpoint, "closed_by_force"),
        **measured,
    )


def _log_perplexity(tensor: ResultTensor, cell: Cell, checkpoints: Sequence[int]) -> Contrast | None:
    """The log-perplexity of the first checkpoint, minus that of the second if there are two."""
    rows = [cell.present.index(checkpoint) for checkpoint in checkpoints]
    key = content_hash([cell.key, cell.documents.tolist()])
    losses, units = cell.scores()[rows].T, cell.units.mean(axis=1)[rows].T
    return log_perplexity(losses, units, [1.0, -1.0][: len(rows)], key, cell.clusters)


def _outcomes(cell: Cell, checkpoint: int) -> dict[str, int]:
    counts = np.bincount(cell.outcomes[cell.present.index(checkpoint)].ravel(), minlength=len(OUTCOMES))
    return {name: int(count) for name, count in zip(OUTCOMES, counts, strict=True)}


def _flagged(cell: Cell, checkpoint: int, flag: str) -> int:
    """Documents of a checkpoint that have a flag."""
    counts = getattr(cell, flag)
    return int(counts[cell.present.index(checkpoint)]) if len(counts) else 0
