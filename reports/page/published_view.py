"""Our recovery beside the published one, and whether the mixers come in the paper's order."""

from dataclasses import dataclass

from markupsafe import Markup

from evalsuite.reports import words
from evalsuite.reports.analysis.published import PublishedRow
from evalsuite.reports.findings import order_sentences
from evalsuite.reports.page.axes import Axis, nice_axis
from evalsuite.reports.page.marks import axis_mark, interval_mark
from evalsuite.reports.report import Report


@dataclass(frozen=True, slots=True)
class PublishedLine:
    """Our recovery beside the published one."""

    label: str
    ours: str
    interval: str
    mark: Markup
    centred: str
    centred_interval: str
    theirs: str
    theirs_centred: str
    about: str
    sort_ours: float | None
    sort_centred: float | None
    sort_theirs: float | None
    sort_theirs_centred: float | None


@dataclass(frozen=True, slots=True)
class PublishedView:
    """The section."""

    caption: str
    orders: tuple[str, ...]
    """Sentences about the order of the mixers here and there."""
    citation: str
    axis: Markup
    lines: tuple[PublishedLine, ...]
    columns: tuple[str, ...]
    printed: tuple[tuple[str, tuple[str, ...]], ...]
    """Model of the paper → printed recovery per benchmark."""


def published_view(report: Report) -> PublishedView | None:
    """Our recovery beside the published one; None where no benchmark and mixer is theirs."""
    rows = sorted(report.published, key=lambda row: -(row.ours.point or 0.0))
    if not rows:
        return None
    ends = [100 * row.theirs for row in rows if row.theirs is not None]
    for row in rows:
        if row.ours.interval is not None:
            ends += [100 * row.ours.interval.low, 100 * row.ours.interval.high]
    axis = nice_axis(ends, include=[100.0])
    names = tuple(dict.fromkeys(name for row in rows for name in row.benchmarks))
    theirs = {(row.model, row.scale): row for row in rows if row.model is not None}
    printed = tuple(
        (
            f"{model}, {scale}",
            tuple(
                words.percent(row.scores[n][0] / row.scores[n][1]) if n in row.scores else words.NOTHING
                for n in names
            ),
        )
        for (model, scale), row in theirs.items()
    )
    return PublishedView(
        caption=(
            f"Recovery over the benchmarks that both have ({', '.join(names)}), against the student with "
            "the same mixer and the nearest size in the paper. The dashed line is the published figure. "
            "Above chance, the chance levels of our documents are taken from their printed scores too. "
            "Teachers, data and token budgets differ: this is a landmark, not a contest."
        ),
        orders=tuple(sentence for order in report.orders for sentence in order_sentences(report, order)),
        citation=rows[0].citation,
        axis=axis_mark(axis),
        lines=tuple(_line(report, row, axis) for row in rows),
        columns=names,
        printed=printed,
    )


def _line(report: Report, row: PublishedRow, axis: Axis) -> PublishedLine:
    mark = Markup("")
    if row.ours.interval is not None:
        said = f"ours {words.estimate(row.ours)}"
        said += "" if row.theirs is None else f", published {words.percent(row.theirs)}"
        reference = None if row.theirs is None else 100 * row.theirs
        mark = interval_mark(row.ours.interval.scaled(100), axis, said, reference=reference)
    return PublishedLine(
        label=report.subjects[row.subject].label,
        ours=words.percent(row.ours.point),
        interval=words.span(row.ours.interval) if row.ours.interval else "",
        mark=mark,
        centred=words.percent(row.centred.point),
        centred_interval=words.span(row.centred.interval) if row.centred.interval else "",
        theirs=words.percent(row.theirs),
        theirs_centred=words.percent(row.theirs_centred),
        about="" if row.model is None else f"{row.model}, {row.scale}",
        sort_ours=row.ours.point,
        sort_centred=row.centred.point,
        sort_theirs=row.theirs,
        sort_theirs_centred=row.theirs_centred,
    )
