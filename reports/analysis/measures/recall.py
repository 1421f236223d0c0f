"""Recall: several numbers, never one, since each fails in its own way.

A number is the mean over the benchmarks that name it in their plan, by context and over all contexts. It is
undefined without all tasks that it requires.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from evalsuite.foundation.taxonomy import RecallNumber
from evalsuite.reports.analysis.bootstrap_sample import LEVEL_METHOD, Estimate
from evalsuite.reports.analysis.lineage import Lineage, lineage_of
from evalsuite.reports.analysis.recovery import recovery
from evalsuite.reports.analysis.result_tensor import ResultTensor
from evalsuite.reports.analysis.scopes import Pool

MIN_STUDENTS = 5
"""A rank correlation of fewer students is noise."""
_GROUPS: dict[Literal["all", "pure", "hybrid"], Callable[[Lineage], bool]] = {
    "all": lambda lineage: True,
    "pure": lambda lineage: bool(lineage.mixers) and not lineage.softmax_layers and not lineage.windows,
    "hybrid": lambda lineage: bool(lineage.softmax_layers),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallRow:
    """One recall number of one checkpoint under one protocol."""

    checkpoint: int
    kind: str
    """Name of the number."""
    number: RecallNumber
    protocol: str
    context: int | None
    """In tokens; None for the mean over contexts, and for tasks without contexts."""
    tasks: tuple[str, ...]
    missing: tuple[str, ...]
    """Tasks without scores of this checkpoint or its teacher: of the plan, or that the number requires."""
    documents: int
    score: Estimate
    """Mean over the tasks; undefined if any is missing."""
    recovery: Estimate
    """Score ÷ the teacher's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallCorrelation:
    """Rank correlation of recovery under log-likelihood and a recall number in generation over students."""

    teacher: int
    students: Literal["all", "pure", "hybrid"]
    """`pure`: recurrences alone; `hybrid`: some layers softmax. Windows are in `all` only."""
    context: int
    count: int
    """Number of students."""
    rho: float
    """Spearman's ρ."""


def recall_correlations(
    tensor: ResultTensor, rows: Sequence[RecallRow], recoveries: Mapping[int, float]
) -> list[RecallCorrelation]:
    """One row per teacher, context and group of students, where `MIN_STUDENTS` have both.

    The number is the one that is declared to be shown against recovery.

    Args:
        tensor: the checkpoints.
        rows: of `recall_rows`.
        recoveries: student → recovery under log-likelihood that ranks it.
    """
    found = []
    shares = {
        (row.checkpoint, row.context): point
        for row in against_recovery(rows)
        if (point := row.score.point) is not None
    }
    for context in sorted({c for _, c in shares if c is not None}):
        for teacher in sorted({t for each in tensor.checkpoints if (t := each.teacher) is not None}):
            there = [
                i for i in recoveries if (i, context) in shares and tensor.checkpoints[i].teacher == teacher
            ]
            for name, is_member in _GROUPS.items():
                members = [i for i in there if is_member(lineage_of(tensor.checkpoints[i].plan))]
                values = [[recoveries[i] for i in members], [shares[i, context] for i in members]]
                if len(members) < MIN_STUDENTS or any(len(set(each)) < 2 for each in values):
                    continue
                # Equal averages of other tasks differ in their last bits, and are ties.
                ranks = [pd.Series(each).round(12).rank() for each in values]
                rho = float(np.corrcoef(ranks)[0, 1])
                found.append(
                    RecallCorrelation(
                        teacher=teacher, students=name, context=context, count=len(members), rho=rho
                    )
                )
    return found


def against_recovery(rows: Sequence[RecallRow]) -> list[RecallRow]:
    """The rows in generation of the first number that is shown against recovery."""
    shown = [row for row in rows if row.number.against_recovery and row.protocol == "generation"]
    return [row for row in shown if row.kind == shown[0].kind]


def recall_rows(pool: Pool) -> list[RecallRow]:
    """One row per checkpoint, number and context, and one over the contexts where there are several.

    Numbers with contexts come first, in the order of the plan.
    """
    found = []
    numbers: dict[str, RecallNumber] = {}
    parts: dict[str, list[int]] = {}
    for i, cell in enumerate(pool.cells):
        for name, number in cell.benchmark.recall.items():
            numbers.setdefault(name, number)
            parts.setdefault(name, []).append(i)
    order = sorted(parts, key=lambda name: all(pool.cells[i].context is None for i in parts[name]))
    for kind in order:
        number, cells = numbers[kind], parts[kind]
        contexts = sorted({c for i in cells if (c := pool.cells[i].context) is not None})
        groups: list[tuple[int | None, list[int]]] = [
            (context, [i for i in cells if pool.cells[i].context == context]) for context in contexts
        ]
        others = [set(parts[name]) for name in parts if name != kind]
        if number.tasks and any(set(cells) <= other for other in others):
            groups = []  # All there is of it is another number, which has the contexts.
        if len(groups) != 1:
            groups.append((None, cells))
        for context, members in groups:
            for checkpoint in range(len(pool.tensor.checkpoints)):
                row = _row(pool, kind, number, context, members, checkpoint)
                found += [] if row is None else [row]
    return found


def _row(
    pool: Pool, kind: str, number: RecallNumber, context: int | None, cells: Sequence[int], checkpoint: int
) -> RecallRow | None:
    teacher = pool.tensor.checkpoints[checkpoint].teacher
    who = {checkpoint} if teacher is None else {checkpoint, teacher}
    there = tuple(i for i in cells if who <= set(pool.cells[i].present))
    if not there:
        return None
    wanted = number.tasks or _names(pool, cells)
    lacking = set(_names(pool, [i for i in cells if i not in there])) | {
        each.benchmark
        for each in pool.tensor.incomplete
        if each.checkpoint in who and each.protocol == pool.protocol and context in (None, each.context)
    }
    tasks = _names(pool, there)
    missing = tuple(name for name in wanted if name in lacking or name not in tasks)
    data = pool.sample(there)
    assert data is not None  # there are cells
    why = f"{len(missing)} of {len(wanted)} tasks are missing: {', '.join(missing)}"
    return RecallRow(
        checkpoint=checkpoint,
        kind=kind,
        number=number,
        protocol=pool.protocol,
        context=context,
        tasks=tasks,
        missing=missing,
        documents=data.documents,
        score=Estimate(None, why)
        if missing
        else Estimate(data.level_contrast(checkpoint).interval(method=LEVEL_METHOD)),
        recovery=Estimate(None, why)
        if missing
        else Estimate(None, "a teacher has no recovery")
        if teacher is None
        else recovery(data, checkpoint, teacher),
    )


def _names(pool: Pool, cells: Sequence[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(pool.cells[i].benchmark.name for i in cells))
