"""Average rows: recovery over all benchmarks and per category, with ranks that allow for ties."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from evalsuite.reports.analysis.bootstrap_sample import LEVEL_METHOD, Estimate
from evalsuite.reports.analysis.cells import Cell
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.analysis.pairs import proven_pairs
from evalsuite.reports.analysis.recovery import (
    capped_recovery,
    chance_normalized_recovery,
    recipe_recovery,
    recovery,
    win_or_tie_rate,
)
from evalsuite.reports.analysis.rows import AverageRow
from evalsuite.reports.analysis.scopes import ALL, INFORMATIVE, Pool, Scope
from evalsuite.reports.records.merging import CellKey


def average_rows(pool: Pool, informative: Mapping[int, Sequence[str]] | None = None) -> list[AverageRow]:
    """Rows for every scope and checkpoint of a protocol; students of one teacher are ranked per scope.

    Args:
        pool: the cells of the protocol.
        informative: teacher → names of its informative benchmarks; adds the scope `informative` for it and
            its students.
    """
    checkpoints = pool.tensor.checkpoints
    scopes: list[tuple[Scope, Sequence[int]]] = [(scope, range(len(checkpoints))) for scope in pool.scopes()]
    for teacher, names in (informative or {}).items():
        cells = [i for i, cell in enumerate(pool.cells) if cell.benchmark.name in names]
        family = [i for i, each in enumerate(checkpoints) if teacher in (i, each.teacher)]
        scopes += [(pool.scope(INFORMATIVE, cells), family)] if cells else []
    rows = []
    for scope, members in scopes:
        here = [row for i in members if (row := _row(pool, scope, i)) is not None]
        rows += _with_ranks(pool, scope, here)
    return rows


def _row(pool: Pool, scope: Scope, checkpoint: int) -> AverageRow | None:
    teacher = pool.tensor.checkpoints[checkpoint].teacher
    who = [checkpoint] if teacher is None else [checkpoint, teacher]
    cells = pool.answered(scope, who)
    data = pool.sample(cells)
    if data is None:
        return None
    answered = [pool.cells[i] for i in cells]
    row = AverageRow(
        checkpoint=checkpoint,
        scope=scope.name,
        protocol=scope.protocol,
        benchmarks=tuple(dict.fromkeys(cell.benchmark.name for cell in answered)),
        missing=_missing(pool, scope, checkpoint, teacher),
        counts_with=pool.counts_with(scope, who),
        documents=data.documents,
        score=data.level_contrast(checkpoint).interval(method=LEVEL_METHOD),
        drop=None,
        recovery=Estimate(None, "a teacher has no recovery"),
        chance_normalized_recovery=Estimate(None, "a teacher has no recovery"),
        capped_recovery=Estimate(None, "a teacher has no recovery"),
        win_or_tie_rate=None,
        runs=(checkpoint,),
        recipe_recovery=Estimate(None, "a teacher has no recovery"),
    )
    if teacher is None:
        return row
    normalized = Estimate(None, "the chance level of a benchmark is not known")
    if all(cell.chance is not None for cell in answered):
        normalized = chance_normalized_recovery(data, checkpoint, teacher, pool.chance)
    runs = tuple(
        run for run in pool.recipes.runs(checkpoint) if all(run in pool.cells[i].present for i in cells)
    )
    drop = {teacher: 1.0, checkpoint: -1.0}
    return replace(
        row,
        drop=data.contrast(drop).interval(method=data.method(drop)),
        recovery=recovery(data, checkpoint, teacher),
        chance_normalized_recovery=normalized,
        capped_recovery=capped_recovery(
            data, [cell.benchmark.name for cell in answered], checkpoint, teacher
        ),
        win_or_tie_rate=win_or_tie_rate(data, checkpoint, teacher),
        runs=runs,
        recipe_recovery=recipe_recovery(data, runs, teacher, pool.recipes.spread(data, teacher)),
    )


def _missing(pool: Pool, scope: Scope, checkpoint: int, teacher: int | None) -> tuple[str, ...]:
    """Benchmarks of a scope that the teacher has or the plan has, but that are not measured here."""
    cells = [pool.cells[i] for i in scope.cells]
    lacking = {cell.key for cell in cells if teacher is None or teacher in cell.present}
    lacking -= {cell.key for cell in cells if checkpoint in cell.present}
    lacking -= _read_by_no_student(pool, teacher)
    lacking |= {cell.key for cell in pool.tensor.incomplete if cell.checkpoint in (checkpoint, teacher)}
    lacking -= _counted_with(pool, cells, checkpoint)
    named = {cell.benchmark.name for cell in cells} if scope.name == INFORMATIVE else None
    return tuple(
        benchmark.name
        for benchmark in pool.tensor.merged.benchmarks
        if (scope.name in (ALL, benchmark.category) if named is None else benchmark.name in named)
        and (how := benchmark.protocols.get(scope.protocol)) is not None  # type: ignore[call-overload]
        and how.direction == "higher"
        and any((benchmark.name, scope.protocol, context) in lacking for context in how.contexts)
    )


def _read_by_no_student(pool: Pool, teacher: int | None) -> set[CellKey]:
    """Cells whose context none of a teacher's students reads: nobody is compared on them."""
    if teacher is None:
        return set()
    students = [i for i, each in enumerate(pool.tensor.checkpoints) if each.teacher == teacher]
    return {cell.key for cell in pool.cells if all((i, cell.key) in pool.tensor.unread for i in students)}


def _counted_with(pool: Pool, cells: Sequence[Cell], checkpoint: int) -> set[CellKey]:
    """Cells without a checkpoint whose requests it has in another benchmark, which count once."""
    found = pool.tensor.counting.representatives(cells)
    return {cells[i].key for i, into in found.items() if checkpoint in cells[into].present}


def _with_ranks(pool: Pool, scope: Scope, rows: Sequence[AverageRow]) -> list[AverageRow]:
    """Rank the finished students of each teacher that have scores for the complete scope."""
    ranked = {row.checkpoint: row for row in rows}
    teachers = [pool.tensor.checkpoints[row.checkpoint].teacher for row in rows]
    for teacher in dict.fromkeys(index for index in teachers if index is not None):
        group = [
            row
            for row in rows
            if pool.tensor.checkpoints[row.checkpoint].teacher == teacher
            and not row.missing
            and row.recovery.interval is not None
            and lineage_of(pool.tensor.checkpoints[row.checkpoint]).complete
        ]
        members = [row.checkpoint for row in group]
        data = pool.of(scope, [*members, teacher])
        if data is None:
            continue
        proven = proven_pairs(data, pool.recipes, members)
        levels = {checkpoint: round(data.level(checkpoint), 12) for checkpoint in members}
        for checkpoint in members:
            ranked[checkpoint] = replace(
                ranked[checkpoint],
                rank=1 + sum(level > levels[checkpoint] for level in levels.values()),
                rank_low=1 + sum(worse == checkpoint for _, worse in proven),
                rank_high=len(members) - sum(better == checkpoint for better, _ in proven),
            )
    return [ranked[row.checkpoint] for row in rows]


def order(rows: Sequence[AverageRow]) -> list[AverageRow]:
    """Sort by recovery, best first; rows without one last, in their given order."""
    points = np.array([-np.inf if row.recovery.point is None else row.recovery.point for row in rows])
    return [rows[i] for i in np.argsort(-points, kind="stable")]
