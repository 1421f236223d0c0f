"""Comparison with arXiv 2504.14366: recovery per student, and the ranking of the mixers."""

from dataclasses import dataclass

from markupsafe import Markup

from evalsuite.reports import formatting
from evalsuite.reports.analysis.paper_comparison import PaperRow
from evalsuite.reports.figures.axes import Axis, nice_axis
from evalsuite.reports.figures.row_charts import axis_mark, interval_mark
from evalsuite.reports.findings import order_sentences
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.measures.paper_tables import PaperTable, paper_tables
from evalsuite.reports.report import Report
from evalsuite.reports.section import section
from evalsuite.reports.table import Column, Table, label_column, teacher_column, weights_column


@dataclass(frozen=True, slots=True)
class PaperLine:
    """One student and its counterpart in the paper."""

    label: str
    ours: str
    interval: str
    mark: Markup
    chance_normalized: str
    chance_normalized_interval: str
    paper: str
    paper_chance_normalized: str
    about: str
    sort_ours: float | None
    sort_chance_normalized: float | None
    sort_paper: float | None
    sort_paper_chance_normalized: float | None


@dataclass(frozen=True, slots=True)
class PaperView:
    """The section."""

    caption: str
    orders: tuple[str, ...]
    """Sentences about the rank correlation with the paper."""
    citation: str
    axis: Markup
    lines: tuple[PaperLine, ...]
    columns: tuple[str, ...]
    paper_recovery: tuple[tuple[str, tuple[str, ...]], ...]
    """Model of the paper → its recovery per benchmark."""


def paper_view(report: Report) -> PaperView | None:
    """The section; None if no mixer and benchmark of the paper is in the report."""
    rows = sorted(report.paper_comparison, key=lambda row: -(row.recovery.point or 0.0))
    if not rows:
        return None
    ends = [100 * row.paper_recovery for row in rows if row.paper_recovery is not None]
    for row in rows:
        if row.recovery.interval is not None:
            ends += [100 * row.recovery.interval.low, 100 * row.recovery.interval.high]
    axis = nice_axis(ends, include=[100.0])
    names = tuple(dict.fromkeys(name for row in rows for name in row.benchmarks))
    models = {(row.model, row.scale): row for row in rows if row.model is not None}
    paper_recovery = tuple(
        (
            f"{model}, {scale}",
            tuple(
                formatting.percent(row.scores[n][0] / row.scores[n][1])
                if n in row.scores
                else formatting.NOTHING
                for n in names
            ),
        )
        for (model, scale), row in models.items()
    )
    return PaperView(
        caption=(
            f"Recovery over the shared benchmarks ({', '.join(names)}). Each student is compared with the "
            "student of the paper that has the same mixer and the nearest size; the dashed line marks the "
            "paper's recovery. Chance-normalized values use the chance levels of our documents for both. "
            "Teachers, data, prompts and token budgets differ, so the values are not directly comparable."
        ),
        orders=tuple(
            sentence for order in report.paper_orders for sentence in order_sentences(report, order)
        ),
        citation=rows[0].citation,
        axis=axis_mark(axis),
        lines=tuple(_line(report, row, axis) for row in rows),
        columns=names,
        paper_recovery=paper_recovery,
    )


def _line(report: Report, row: PaperRow, axis: Axis) -> PaperLine:
    mark = Markup("")
    if row.recovery.interval is not None:
        label = f"ours {formatting.estimate(row.recovery)}"
        label += "" if row.paper_recovery is None else f", paper {formatting.percent(row.paper_recovery)}"
        reference = None if row.paper_recovery is None else 100 * row.paper_recovery
        mark = interval_mark(row.recovery.interval.scaled(100), axis, label, reference=reference)
    return PaperLine(
        label=report.checkpoints[row.checkpoint].label,
        ours=formatting.percent(row.recovery.point),
        interval=formatting.span(row.recovery.interval) if row.recovery.interval else "",
        mark=mark,
        chance_normalized=formatting.percent(row.chance_normalized_recovery.point),
        chance_normalized_interval=formatting.span(row.chance_normalized_recovery.interval)
        if row.chance_normalized_recovery.interval
        else "",
        paper=formatting.percent(row.paper_recovery),
        paper_chance_normalized=formatting.percent(row.paper_chance_normalized_recovery),
        about="" if row.model is None else f"{row.model}, {row.scale}",
        sort_ours=row.recovery.point,
        sort_chance_normalized=row.chance_normalized_recovery.point,
        sort_paper=row.paper_recovery,
        sort_paper_chance_normalized=row.paper_chance_normalized_recovery,
    )


@dataclass(frozen=True, slots=True)
class PapersView:
    """The section."""

    ours: PaperView | None
    tables: list[PaperTable]


@section("papers", "Comparison with published results", order=88, nav="Papers")
def papers_view(report: Report) -> PapersView | None:
    """Our students next to the paper's, and scores as printed; None without a shared benchmark."""
    view = PapersView(paper_view(report), paper_tables(report))
    return view if view.ours or view.tables else None


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
