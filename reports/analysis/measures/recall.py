"""Recall: needles, RULER's mean and LongBench. Three numbers, never one: each fails in its own way.

- *Needles*: the three single-needle tasks (S-NIAH), by context and over all contexts.
- *RULER*: the mean of its 13 tasks (Hsieh et al. 2024, arXiv 2404.06654), by context; undefined without all.
- *LongBench*: the mean of its sets (Bai et al. 2023, arXiv 2308.14508).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from evalsuite.reports.analysis.bootstrap_sample import LEVEL_METHOD, Estimate
from evalsuite.reports.analysis.cells import Cell
from evalsuite.reports.analysis.lineage import Lineage, lineage_of
from evalsuite.reports.analysis.recovery import recovery
from evalsuite.reports.analysis.result_tensor import ResultTensor
from evalsuite.reports.analysis.scopes import Pool

Kind = Literal["needles", "ruler", "longbench"]
MIN_STUDENTS = 5
"""A rank correlation of fewer students is noise."""
_GROUPS: dict[Literal["all", "pure", "hybrid"], Callable[[Lineage], bool]] = {
    "all": lambda lineage: True,
    "pure": lambda lineage: bool(lineage.mixers) and not lineage.softmax_layers and not lineage.windows,
    "hybrid": lambda lineage: bool(lineage.softmax_layers),
}
RULER_TASKS = (
    *(f"niah_single_{i}" for i in (1, 2, 3)),
    *(f"niah_multikey_{i}" for i in (1, 2, 3)),
    "niah_multivalue",
    "niah_multiquery",
    "ruler_vt",
    "ruler_cwe",
    "ruler_fwe",
    "ruler_qa_1",
    "ruler_qa_2",
)
TESTS: dict[Kind, Callable[[Cell], bool]] = {
    "needles": lambda cell: re.search(r"(^|_)niah_single_\d$", cell.benchmark.name) is not None,
    "ruler": lambda cell: cell.benchmark.name in RULER_TASKS,
    "longbench": lambda cell: cell.benchmark.group == "longbench",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallRow:
    """One recall number of one checkpoint under one protocol."""

    checkpoint: int
    kind: Kind
    protocol: str
    context: int | None
    """In tokens; None for the mean over contexts, and for LongBench."""
    tasks: tuple[str, ...]
    missing: tuple[str, ...]
    """Tasks without scores of this checkpoint or its teacher: of the plan, for RULER of the 13."""
    documents: int
    score: Estimate
    """Mean over the tasks; undefined if any is missing."""
    recovery: Estimate
    """Score ÷ the teacher's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallCorrelation:
    """Rank correlation of recovery under log-likelihood and needles in generation over students."""

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

    Args:
        tensor: the checkpoints.
        rows: of `recall_rows`.
        recoveries: student → recovery under log-likelihood that ranks it.
    """
    found = []
    needles = {
        (row.checkpoint, row.context): point
        for row in rows
        if (row.kind, row.protocol) == ("needles", "generation") and (point := row.score.point) is not None
    }
    for context in sorted({c for _, c in needles if c is not None}):
        for teacher in sorted({t for each in tensor.checkpoints if (t := each.teacher) is not None}):
            there = [
                i for i in recoveries if (i, context) in needles and tensor.checkpoints[i].teacher == teacher
            ]
            for name, is_member in _GROUPS.items():
                members = [i for i in there if is_member(lineage_of(tensor.checkpoints[i].plan))]
                values = [[recoveries[i] for i in members], [needles[i, context] for i in members]]
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


def recall_rows(pool: Pool) -> list[RecallRow]:
    """One row per checkpoint, kind and context, and one over the contexts where there are several."""
    found = []
    for kind, is_part in TESTS.items():
        cells = [i for i, cell in enumerate(pool.cells) if is_part(cell)]
        contexts = sorted({c for i in cells if (c := pool.cells[i].context) is not None})
        groups: list[tuple[int | None, list[int]]] = [
            (context, [i for i in cells if pool.cells[i].context == context]) for context in contexts
        ]
        if kind == "ruler" and all(TESTS["needles"](pool.cells[i]) for i in cells):
            groups = []  # The needles alone are shown as needles.
        if cells and len(groups) != 1:
            groups.append((None, cells))
        for context, members in groups:
            for checkpoint in range(len(pool.tensor.checkpoints)):
                row = _row(pool, kind, context, members, checkpoint)
                found += [] if row is None else [row]
    return found


def _row(
    pool: Pool, kind: Kind, context: int | None, cells: Sequence[int], checkpoint: int
) -> RecallRow | None:
    teacher = pool.tensor.checkpoints[checkpoint].teacher
    who = {checkpoint} if teacher is None else {checkpoint, teacher}
    there = tuple(i for i in cells if who <= set(pool.cells[i].present))
    if not there:
        return None
    wanted = RULER_TASKS if kind == "ruler" else _names(pool, cells)
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
