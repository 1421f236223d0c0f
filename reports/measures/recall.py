"""Recall: needles, the mean of RULER and LongBench, by context and over the contexts."""

from evalsuite.reports.analysis.measures.recall import RecallRow
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.table import Column, Table, label_column, teacher_column, weights_column

RECALL: Table[RecallRow] = Table(
    name="recall",
    title="Recall",
    rows=lambda report: report.recall,
    columns=(
        label_column(),
        weights_column(),
        teacher_column(),
        Column("protocol", unit="text"),
        Column("recall", value=lambda report, row: row.kind, unit="text"),
        Column("context"),
        Column("tasks", value=lambda report, row: " ".join(row.tasks), unit="text"),
        Column("missing", value=lambda report, row: " ".join(row.missing), unit="text"),
        Column("documents"),
        Column("score", kind="estimate", unit="percent"),
        Column("recovery", kind="estimate", unit="percent"),
    ),
)
MEASURES.add("recall", Measure(tables=(RECALL,)))
