"""Informative benchmarks: those on which a teacher's scores say something, so that a student can lose it.

A benchmark is informative under a protocol if the teacher's lead over chance is positive by its 95 % interval
and, under generation, if the teacher names an answer in at least 90 % of its responses. Elsewhere a recovery
compares guesses, or how often a letter is named. A suite can declare that a benchmark is not, such as one
whose answers are in the training data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.analysis.flips import named_share
from evalsuite.reports.analysis.scopes import Pool
from evalsuite.reports.statistics.intervals import Interval

MIN_NAMED = 0.9
"""Share of its responses in which a teacher must name an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InformativeRow:
    """Whether a benchmark is informative for the students of a teacher, over all of its contexts."""

    teacher: int
    benchmark: str
    protocol: str
    documents: int
    score: float
    """The teacher's score, a fraction."""
    chance: float | None
    """Mean chance level; None if unknown."""
    lead: Estimate
    """The teacher's score − chance."""
    named: float
    """Share of the teacher's responses that name an answer; 1 under log-likelihood."""
    why: str
    """Why the benchmark is not informative; empty if it is."""
    counts_with: str = ""
    """The informative benchmark whose requests include this one's: the two count once; empty if none does."""

    @property
    def is_informative(self) -> bool:
        """Whether it counts toward informative recovery."""
        return not self.why


def informative_rows(pool: Pool, teacher: int) -> list[InformativeRow]:
    """One row per benchmark of a protocol that the teacher was evaluated on, in the order of the plan.

    Benchmarks without an average, which are perplexities and single documents, have none.
    """
    benchmarks: dict[str, list[int]] = {}
    for i, cell in enumerate(pool.cells):
        if teacher in cell.present:
            benchmarks.setdefault(cell.benchmark.name, []).append(i)
    rows = [_row(pool, teacher, name, tuple(cells)) for name, cells in benchmarks.items()]
    counted = [pool.cells[i] for row in rows if row.is_informative for i in benchmarks[row.benchmark]]
    with_others = pool.tensor.counting.benchmarks(counted)
    return [replace(row, counts_with=with_others.get(row.benchmark, "")) for row in rows]


def informative_names(rows: Sequence[InformativeRow], teacher: int, protocol: str) -> tuple[str, ...]:
    """Names of the informative benchmarks of a teacher under a protocol."""
    return tuple(
        row.benchmark
        for row in rows
        if (row.teacher, row.protocol) == (teacher, protocol) and row.is_informative
    )


def _row(pool: Pool, teacher: int, name: str, cells: tuple[int, ...]) -> InformativeRow:
    data = pool.sample(cells)
    assert data is not None  # a benchmark has cells
    members = [pool.cells[i] for i in cells]
    named = float(
        data.weights @ np.array([named_share(cell, cell.present.index(teacher)) for cell in members])
    )
    score = data.level(teacher)
    chance, lead, why = None, Estimate(None, "its chance level is not known"), "its chance level is not known"
    if all(cell.chance is not None for cell in members):
        chance = data.level(pool.chance)
        contrast = data.mean({teacher: 1.0, pool.chance: -1.0})
        interval = contrast.interval(method="paired bootstrap")
        lead, why = Estimate(interval), "" if interval.low > 0 else _at_chance(chance, interval)
    if not why and named < MIN_NAMED:
        why = (
            f"the teacher names an answer in only {100 * named:.0f} % of its responses "
            f"(at least {100 * MIN_NAMED:.0f} % needed)"
        )
    why = members[0].benchmark.not_leading or why
    return InformativeRow(
        teacher=teacher,
        benchmark=name,
        protocol=pool.protocol,
        documents=data.documents,
        score=score,
        chance=chance,
        lead=lead,
        named=named,
        why=why,
    )


def _at_chance(chance: float, lead: Interval) -> str:
    return (
        f"the teacher is not above chance ({100 * chance:.1f} %): its lead is {100 * lead.point:.1f} points "
        f"(95 % interval {100 * lead.low:.1f} to {100 * lead.high:.1f})"
    )
