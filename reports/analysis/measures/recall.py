"""Recall: needles, RULER's mean and LongBench. Three numbers, never one: each fails in its own way.

- *Needles*: the three single-needle tasks (S-NIAH), by context and over all contexts.
- *RULER*: the mean of its 13 tasks (Hsieh et al. 2024, arXiv 2404.06654), by context; undefined without all.
- *LongBench*: the mean of its sets (Bai et al. 2023, arXiv 2308.14508).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from evalsuite.reports.analysis.bootstrap_sample import LEVEL_METHOD, Estimate
from evalsuite.reports.analysis.recovery import recovery
from evalsuite.reports.analysis.result_tensor import Cell
from evalsuite.reports.analysis.scopes import Pool

Kind = Literal["needles", "ruler", "longbench"]
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
