"""Whether selectors, mixers or budgets choose the same softmax layers of one teacher (Figure 5 of KL-guided
layer selection, ICLR 2026)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.measures.layers import selection_names, selections
from evalsuite.reports.records.sidecars import Selection
from evalsuite.reports.report import Report
from evalsuite.reports.statistics.agreement import jaccard, rank_agreement
from evalsuite.reports.table import CSV, Column, Table


@dataclass(frozen=True, slots=True)
class SelectionPair:
    """Two selections of softmax layers, or heads, of one teacher."""

    first: str
    second: str
    """Names of the selections."""
    shared: int
    """Layers that both choose."""
    smaller: int
    """Layers of the smaller set, the most that can be shared."""
    jaccard: float
    """Shared layers ÷ layers of either."""
    by_chance: float | None
    """Expected number of shared layers of two random sets of these sizes; None if the depth is unknown."""
    tau: float | None
    """Kendall's τ-b of the scores of the layers that both score; None with fewer than two."""


def selection_pairs(found: Sequence[Selection], names: Sequence[str]) -> list[SelectionPair]:
    """All pairs of selections of one teacher.

    Args:
        found: the selections; one without a teacher is compared with none, and heads not with layers.
        names: one per selection.
    """
    return [
        _pair(one, other, first, second)
        for (one, first), (other, second) in combinations(zip(found, names, strict=True), 2)
        if one.teacher is not None
        and (one.teacher, bool(one.head_scores)) == (other.teacher, bool(other.head_scores))
    ]


def _pair(one: Selection, other: Selection, first: str, second: str) -> SelectionPair:
    depth = max(len(one.unit_scores), len(other.unit_scores)) or None
    pairs = zip(one.unit_scores, other.unit_scores, strict=False)
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    return SelectionPair(
        first,
        second,
        len({*one.units} & {*other.units}),
        min(len(one.units), len(other.units)),
        jaccard(one.units, other.units),
        None if depth is None else len(one.units) * len(other.units) / depth,
        rank_agreement([a for a, _ in both], [b for _, b in both]).tau if len(both) > 1 else None,
    )


def _rows(report: Report) -> list[SelectionPair]:
    return selection_pairs(report.of(selections), selection_names(report))


SELECTION_PAIRS: Table[SelectionPair] = Table(
    name="selection_pairs",
    title="Do selections agree?",
    rows=_rows,
    columns=(
        Column("first", unit="text"),
        Column("second", unit="text"),
        Column(
            "shared", "shared layers", show=lambda report, row: f"{row.shared} of {row.smaller}", digits=0
        ),
        Column("smaller", hint="layers of the smaller set", digits=0, outputs=CSV),
        Column("jaccard", "Jaccard", hint="shared layers ÷ layers of either", digits=2),
        Column("by_chance", hint="shared layers of two random sets of these sizes", digits=1),
        Column("tau", "τ of the scores", hint="Kendall's τ-b over the layers that both score", digits=2),
    ),
    order=61,
    intro="Selections of the same teacher's layers, two at a time.",
)
MEASURES.add("selection_pairs", Measure(tables=(SELECTION_PAIRS,)))
