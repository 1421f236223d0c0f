"""Log-likelihood vs. generation: scores under both on the same documents, and the gap between the drops."""

from collections.abc import Iterator
from functools import partial

from evalsuite.foundation.taxonomy import FAILURES, OUTCOMES
from evalsuite.reports.analysis.rows import GapRow
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.report import Report
from evalsuite.reports.table import Column, Table, Value, label_column, teacher_column, weights_column

CORRECT = ("correct_both", "correct_loglikelihood_only", "correct_generation_only", "correct_neither")


def _right(who: str, at: int, report: Report, row: GapRow) -> Value:
    return row.right[who][at]


def _share(who: str, outcome: str, report: Report, row: GapRow) -> Value:
    return row.outcomes[who][outcome]


def _explained(outcome: str, report: Report, row: GapRow) -> Value:
    return row.explained[outcome]


def _level(who: str, protocol: str, report: Report, row: GapRow) -> Value:
    return (row.loglikelihood if protocol == "loglikelihood" else row.generation)[who]


def _columns_of(who: str) -> Iterator[Column[GapRow]]:
    """Scores, documents correct and outcomes of the teacher or the student."""
    for protocol in ("loglikelihood", "generation"):
        yield Column(f"{who}_{protocol}", value=partial(_level, who, protocol), unit="percent")
    for at, name in enumerate(CORRECT):
        yield Column(f"{who}_{name}", value=partial(_right, who, at))
    for outcome in OUTCOMES:
        yield Column(f"{who}_share_{outcome}", value=partial(_share, who, outcome), unit="percent")


GAP: Table[GapRow] = Table(
    name="gap",
    title="Log-likelihood vs. generation",
    rows=lambda report: report.gaps,
    json="gaps",
    columns=(
        label_column(),
        weights_column(),
        teacher_column(),
        Column("benchmark", unit="text"),
        Column("context"),
        Column("documents"),
        Column("gap", kind="interval", unit="points"),
        Column("drop_loglikelihood", kind="interval", unit="points"),
        Column("drop_generation", kind="interval", unit="points"),
        *_columns_of("teacher"),
        *_columns_of("student"),
        *(
            Column(f"explained_{name}", value=partial(_explained, name), unit="points")
            for name in (*FAILURES, "any")
        ),
    ),
)
MEASURES.add("gap", Measure(tables=(GAP,)))
