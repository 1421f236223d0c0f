"""Recovery of each student next to that of its counterpart in arXiv 2504.14366."""

from evalsuite.reports.analysis.paper_comparison import PaperRow
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.table import Column, Table, label_column, teacher_column, weights_column

PAPERS: Table[PaperRow] = Table(
    name="paper_comparison",
    title="Comparison with published results",
    rows=lambda report: report.paper_comparison,
    columns=(
        label_column(),
        weights_column(),
        teacher_column(),
        Column("benchmarks", value=lambda report, row: " ".join(row.benchmarks), unit="text"),
        Column("recovery", kind="estimate", unit="percent"),
        Column("chance_normalized_recovery", kind="estimate", unit="percent"),
        Column("paper_model", value=lambda report, row: row.model, unit="text"),
        Column(
            "paper_scale", value=lambda report, row: None if row.model is None else row.scale, unit="text"
        ),
        Column("paper_recovery", unit="percent"),
        Column("paper_chance_normalized_recovery", unit="percent"),
    ),
)
MEASURES.add("papers", Measure(tables=(PAPERS,)))
