"""Recovery along a training run, over sizes of the teacher, and by any other number of a student."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from evalsuite.reports import words
from evalsuite.reports.lineage import lineage_of
from evalsuite.reports.page.axes import exact_axis, log_axis, nice_axis
from evalsuite.reports.page.charts import Curve, Plot, Point, curves
from evalsuite.reports.report import Report


@dataclass(frozen=True, slots=True)
class ChartView:
    """A chart with its legend and its words."""

    title: str
    caption: str
    chart: Markup
    legend: tuple[str, ...]
    y_title: str
    x_title: str


LOOKS = 8
"""Series of one chart that look different; more go to a further chart on the same axes."""


def scaling_views(report: Report) -> list[ChartView]:
    """Recovery by tokens trained on, where checkpoints share a lineage; by size of the teacher, per mixer."""
    return [
        view
        for protocol in report.protocols
        for view in (*_token_scaling(report, protocol), *_size_scaling(report, protocol))
    ]


def _token_scaling(report: Report, protocol: str) -> list[ChartView]:
    families: dict[Hashable, list[int]] = {}
    for student in comparable_students(report, protocol):
        lineage = lineage_of(report.subjects[student].plan)
        if lineage.tokens:
            run = (lineage.recipe, lineage.recipe_hash, lineage.mixers, lineage.seed)
            families.setdefault((report.subjects[student].teacher, *run), []).append(student)
    return recovery_charts(
        report,
        protocol,
        families,
        lambda student: lineage_of(report.subjects[student].plan).tokens or 0,
        title="Recovery by training tokens",
        caption="Checkpoints along one training run; whiskers are 95 % intervals over documents.",
        x_title="tokens trained on",
        x_word=lambda x: words.tokens(round(x)),
    )


def _size_scaling(report: Report, protocol: str) -> list[ChartView]:
    families: dict[Hashable, list[int]] = {}
    for student in comparable_students(report, protocol):
        lineage = lineage_of(report.subjects[student].plan)
        if _teacher_size(report, student) and lineage.complete:
            families.setdefault((family_name(report, student), lineage.recipe), []).append(student)
    return recovery_charts(
        report,
        protocol,
        families,
        lambda student: _teacher_size(report, student),
        title="Recovery by size of the teacher",
        caption="One curve per mixer and recipe, each point against a teacher of its own size.",
        x_title="parameters of the teacher",
        x_word=lambda x: words.parameters(round(x)),
    )


def _teacher_size(report: Report, student: int) -> int:
    teacher = report.subjects[student].teacher
    return 0 if teacher is None else report.subjects[teacher].plan.parameters or 0


def comparable_students(report: Report, protocol: str) -> list[int]:
    """Students whose recovery is over all benchmarks."""
    rows = {student: report.average(student, protocol) for student in report.students()}
    return [s for s, row in rows.items() if row and row.recovery.interval is not None and not row.missing]


def family_name(report: Report, student: int) -> str:
    """The mixers of a student, or its label where they are unknown."""
    plan = report.subjects[student].plan
    return lineage_of(plan).describe_mixers() or report.subjects[student].label


def recovery_charts(
    report: Report,
    protocol: str,
    families: Mapping[Hashable, Sequence[int]],
    x_of: Callable[[int], float],
    *,
    title: str,
    caption: str,
    x_title: str,
    x_word: Callable[[float], str],
    name_of: Callable[[int], str] | None = None,
    log: bool = True,
) -> list[ChartView]:
    """Recovery over some number of each student, one curve per family that has it at several values.

    Args:
        report: whose students.
        protocol: under which their recovery is shown.
        families: anything → students of one curve, from `comparable_students`.
        x_of: the number of a student.
        title: of the chart; the protocol is added.
        caption: a sentence about it.
        x_title: under the axis.
        x_word: a tick of the x axis as text.
        name_of: what the curve of a student is called; default: its mixers.
        log: whether the x axis is logarithmic.
    """
    name_of = name_of or (lambda student: family_name(report, student))
    lines = {key: each for key, each in families.items() if len({x_of(student) for student in each}) > 1}
    names = {key: name_of(each[0]) for key, each in lines.items()}
    if len(set(names.values())) < len(names):
        names = {key: f"{names[key]} ({report.subjects[each[0]].label} …)" for key, each in lines.items()}
    series = [
        Curve(names[key], tuple(_point(report, student, x_of(student), protocol) for student in each))
        for key, each in lines.items()
    ]
    if not series:
        return []
    points = [point for curve in series for point in curve.points]
    ends = [end for point in points for end in (point.low, point.high) if end is not None]
    x_axis = log_axis([p.x for p in points]) if log else exact_axis([p.x for p in points])
    plot = Plot(x_axis, nice_axis(ends, include=[100.0]))
    parts = [series[start : start + LOOKS] for start in range(0, len(series), LOOKS)]
    views = []
    for number, part in enumerate(parts, 1):
        whole = f"{title}, {words.PROTOCOL_WORDS[protocol]}"
        whole += f" ({number} of {len(parts)})" if len(parts) > 1 else ""
        chart = curves(
            part,
            plot,
            label=f"{whole}. " + "; ".join(point.label for curve in part for point in curve.points),
            x_words=[x_word(tick) for tick in plot.x_axis.ticks],
            y_suffix=" %",
            reference=100.0,
        )
        legend = tuple(curve.name for curve in part)
        views.append(ChartView(whole, caption, chart, legend, "recovery", x_title))
    return views


def _point(report: Report, student: int, x: float, protocol: str) -> Point:
    row = report.average(student, protocol)
    assert row is not None
    assert row.recovery.interval is not None
    interval = row.recovery.interval.scaled(100)
    label = f"{report.subjects[student].label}: {words.estimate(row.recovery)} %"
    return Point(x, interval.point, interval.low, interval.high, label)
