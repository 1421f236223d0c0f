"""Comparison with arXiv 2504.14366: recovery per student, and the ranking of the mixers."""

from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup

from evalsuite.reports import formatting
from evalsuite.reports.blocks import Block, Fold, Text, Texts
from evalsuite.reports.figures.axes import Axis, nice_axis
from evalsuite.reports.figures.figure import Values
from evalsuite.reports.figures.row_charts import axis_mark, interval_mark
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.measures.papers.comparison import (
    PaperOrder,
    PaperRow,
    order_sentences,
    paper_orders,
    paper_rows,
)
from evalsuite.reports.measures.papers.tables import paper_tables
from evalsuite.reports.report import Report, resampled
from evalsuite.reports.section import section
from evalsuite.reports.table import (
    CSV,
    PAGE,
    Column,
    Table,
    label_column,
    percentage,
    teacher_column,
    weights_column,
)

OURS_FIRST = (
    "Ours first, in the units of the table and by the metric of this report; a mean over contexts where the "
    "paper states none. Drops and their gap are points between a model and its teacher, over the benchmarks "
    "that the table has under both protocols; printed ones are unpaired."
)
ELSEWHERE = (
    "Scores as printed in the papers, for benchmarks of this report. Models, prompts and budgets differ, so "
    "they are not directly comparable."
)


def paper_comparison(report: Report) -> list[PaperRow]:
    """Every student of a mixer of the paper, over the shared benchmarks."""
    return paper_rows(report.of(resampled)["loglikelihood"])


def orders(report: Report) -> list[PaperOrder]:
    """The ranking of the mixers here and in the paper."""
    return paper_orders(report.of(resampled)["loglikelihood"], report.of(paper_comparison))


@section("papers", "Comparison with published results", order=88)
def papers_section(report: Report) -> list[Block]:
    """Our students next to the paper's, and scores as printed; nothing without a shared benchmark."""
    tables: list[Block] = [
        Fold(f"Scores in the paper: {each.label}", [Text(OURS_FIRST, "note"), each.texts])
        for each in report.of(paper_tables)
    ]
    ours = _ours(report) or ([Text(ELSEWHERE)] if tables else [])
    return [*ours, *tables]


def _ours(report: Report) -> list[Block]:
    """Nothing if no mixer and benchmark of the paper is in the report."""
    rows = sorted(report.of(paper_comparison), key=lambda row: -(row.recovery.point or 0.0))
    if not rows:
        return []
    names = tuple(dict.fromkeys(name for row in rows for name in row.benchmarks))
    about = (
        f"Recovery over the shared benchmarks ({', '.join(names)}). Each student is compared with the "
        "student of the paper that has the same mixer and the nearest size; the dashed line marks the "
        "paper's recovery. Chance-normalized values use the chance levels of our documents for both. "
        "Teachers, data, prompts and token budgets differ, so the values are not directly comparable."
    )
    sentences = [sentence for order in report.of(orders) for sentence in order_sentences(report, order)]
    models = {(row.model, row.scale): row for row in rows if row.model is not None}
    printed = Values(
        ("paper model", *names),
        tuple(
            (
                f"{model}, {scale}",
                *(
                    formatting.percent(row.scores[name][0] / row.scores[name][1])
                    if name in row.scores
                    else formatting.NOTHING
                    for name in names
                ),
            )
            for (model, scale), row in models.items()
        ),
    )
    title = "Recovery per benchmark in the paper, in percent"
    return [
        *map(Text, (about, *sentences)),
        _with_marks(rows),
        Text(rows[0].citation, "note"),
        Fold(title, [Texts(printed, title)]),
    ]


def _with_marks(rows: Sequence[PaperRow]) -> Table[PaperRow]:
    """The comparison with a column of marks on one axis."""
    ends = [100 * row.paper_recovery for row in rows if row.paper_recovery is not None]
    for row in rows:
        if row.recovery.interval is not None:
            ends += [100 * row.recovery.interval.low, 100 * row.recovery.interval.high]
    axis = nice_axis(ends, include=[100.0])
    marks: Column[PaperRow] = Column(
        "mark",
        axis_mark(axis),
        unit="text",
        outputs=PAGE,
        show=lambda report, row: _mark(row, axis),
        css=lambda report, row: "track",
    )
    columns = [
        each
        for column in PAPERS.columns
        for each in ((column, marks) if column.name == "recovery" else (column,))
    ]
    return replace(PAPERS.of(rows), columns=columns)


def _mark(row: PaperRow, axis: Axis) -> Markup:
    if row.recovery.interval is None:
        return Markup("")
    label = f"ours {formatting.estimate(row.recovery)}"
    label += "" if row.paper_recovery is None else f", paper {formatting.percent(row.paper_recovery)}"
    reference = None if row.paper_recovery is None else 100 * row.paper_recovery
    return interval_mark(row.recovery.interval.scaled(100), axis, label, reference=reference)


PAPERS: Table[PaperRow] = Table(
    name="paper_comparison",
    title="Comparison with published results",
    rows=lambda report: report.of(paper_comparison),
    columns=(
        label_column(better="lower"),
        weights_column(),
        teacher_column(),
        Column("benchmarks", value=lambda report, row: " ".join(row.benchmarks), unit="text", outputs=CSV),
        percentage(
            "recovery",
            "ours",
            better="higher",
            css=lambda report, row: "strong",
        ),
        Column("paper_recovery", "paper", unit="percent", better="higher"),
        percentage(
            "chance_normalized_recovery",
            "ours, chance-normalized",
            better="higher",
        ),
        Column(
            "paper_chance_normalized_recovery", "paper, chance-normalized", unit="percent", better="higher"
        ),
        Column(
            "paper_model",
            "paper model",
            value=lambda report, row: row.model,
            show=lambda report, row: "" if row.model is None else f"{row.model}, {row.scale}",
            unit="text",
            outputs=(*CSV, *PAGE),
            css=lambda report, row: "muted",
        ),
        Column(
            "paper_scale",
            value=lambda report, row: None if row.model is None else row.scale,
            unit="text",
            outputs=CSV,
        ),
    ),
)
MEASURES.add("papers", Measure(tables=(PAPERS,), json={"paper_orders": orders}))
