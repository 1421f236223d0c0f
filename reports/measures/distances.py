"""Distance from the teacher: KL divergence and top-1 agreement, on a scale of rounded teachers."""

from evalsuite.reports.analysis.measures.distances import DistanceRow
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.table import Column, Table, label_column, label_of

DISTANCES: Table[DistanceRow] = Table(
    name="distances",
    title="Distance from the teacher",
    rows=lambda report: report.distances,
    columns=(
        label_column(),
        Column("trained_again", value=lambda report, row: int(row.is_retrained)),
        Column("bits"),
        Column("teacher", value=lambda report, row: label_of(report, row.teacher), unit="text"),
        Column("text", unit="text"),
        Column("kind", unit="text"),
        Column("group", unit="text"),
        Column("documents"),
        Column("tokens"),
        Column("kl", "KL, nats per token", kind="interval", digits=3),
        Column("agreement", "same top token", kind="interval", unit="percent"),
        Column("equivalent_bits", kind="estimate"),
    ),
)
MEASURES.add("distances", Measure(tables=(DISTANCES,)))
