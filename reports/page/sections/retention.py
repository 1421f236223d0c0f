"""Agreement with the teacher: a scatter against recovery, and flips behind equal averages."""

from dataclasses import dataclass
from statistics import fmean

import plotly.graph_objects as go

from evalsuite.reports import formatting
from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.analysis.measures.agreement import AgreementRow
from evalsuite.reports.analysis.scopes import ALL, INFORMATIVE
from evalsuite.reports.page.figures import Figure, Table, figure, text
from evalsuite.reports.page.plots import Axis, Curve, Point, curves
from evalsuite.reports.page.section import section
from evalsuite.reports.report import Report


@dataclass(frozen=True, slots=True)
class RetentionView:
    """The section."""

    sentence: str
    figures: list[Figure]


@section("retention", "What changed behind the averages", order=24, nav="Agreement")
def retention_view(report: Report) -> RetentionView | None:
    """Scatter and flips per protocol; None if no answers can be compared."""
    figures = []
    for protocol in report.protocols:
        rows = [
            row
            for student in report.students()
            if (row := report.agreement_with_teacher(student, protocol)) is not None
        ]
        made = _scatter(report, rows, protocol), _flips(report, rows, protocol), _tolerance(report, protocol)
        figures += [each for each in made if each is not None]
    return RetentionView(_sentence(report), figures) if figures else None


def _sentence(report: Report) -> str:
    """What the best student exchanged for its recovery; empty if it is unknown."""
    best = formatting.best_student(report)
    row = None if best is None else report.agreement_with_teacher(best.checkpoint, best.protocol)
    if best is None or row is None or row.lost.point is None or row.gained.point is None:
        return ""
    label = report.checkpoints[row.checkpoint].label
    return (
        f"Recovery is a ratio of averages: {label} loses {formatting.percent(row.lost.point)} % of the "
        f"documents and gains {formatting.percent(row.gained.point)} % over all benchmarks under "
        f"{formatting.PROTOCOL_TITLES[row.protocol]}; averages show only the difference."
    )


def _scatter(report: Report, rows: list[AgreementRow], protocol: str) -> Figure | None:
    """Recovery and agreement of every student; the ceiling is that of two runs of one recipe."""
    found = [
        (row, average.recovery.interval, row.agreement.interval)
        for row in rows
        if (average := report.average(row.checkpoint, protocol)) is not None
    ]
    points = [(row, x, y) for row, x, y in found if x is not None and y is not None]
    if not points:
        return None
    ceilings = [
        row.agreement.point
        for row in report.agreement_ceilings
        if row.protocol == protocol and row.scope == ALL and row.agreement.point is not None
    ]
    labels = [report.checkpoints[row.checkpoint].label for row, _, _ in points]
    spoken = [
        f"{label}: recovery {formatting.estimate(Estimate(x))} %, "
        f"agreement {formatting.estimate(Estimate(y))} %"
        for label, (_, x, y) in zip(labels, points, strict=True)
    ]
    trace = go.Scatter(
        x=[100 * x.point for _, x, _ in points],
        y=[100 * y.point for _, _, y in points],
        error_x=_whiskers([(x.low, x.point, x.high) for _, x, _ in points]),
        error_y=_whiskers([(y.low, y.point, y.high) for _, _, y in points]),
        mode="markers+text",
        text=[
            text(label) if is_alone else ""
            for label, is_alone in zip(
                labels, _alone([x.point for _, x, _ in points], [y.point for _, _, y in points]), strict=True
            )
        ],
        textposition="top center",
        marker={"size": 9, "color": "var(--accent)"},
        hovertext=[text(each) for each in spoken],
        hoverinfo="text",
    )
    shapes = []
    caption = "Equal recoveries hide different choices."
    if ceilings:
        level = 100 * fmean(ceilings)
        line = {"color": "var(--ref)", "width": 1.3, "dash": "dot"}
        shapes = [{"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": level, "y1": level, "line": line}]
        caption += f" Dotted: agreement of two training runs of one recipe, {level:.1f} % on average."
    return figure(
        [trace],
        {
            "xaxis": {"title": {"text": "recovery, %"}},
            "yaxis": {"title": {"text": "agreement, %"}},
            "shapes": shapes,
            "showlegend": False,
        },
        title=f"Agreement against recovery, {formatting.PROTOCOL_TITLES[protocol]}",
        caption=caption,
        height=max(380, 20 * len(points) + 70),
        table=Table(
            ("model", "recovery %", "agreement %", "κ"),
            tuple(
                (
                    label,
                    formatting.estimate(Estimate(x)),
                    formatting.estimate(Estimate(y)),
                    formatting.NOTHING if row.kappa.point is None else f"{row.kappa.point:.2f}",
                )
                for label, (row, x, y) in zip(labels, points, strict=True)
            ),
        ),
    )


def _alone(x: list[float], y: list[float]) -> list[bool]:
    """Whether the label above a point is clear of all others: labels are much wider than high."""
    width, height = max(x) - min(x) or 1.0, max(y) - min(y) or 1.0
    return [
        not any(
            abs(x[i] - x[j]) < 0.25 * width and abs(y[i] - y[j]) < 0.1 * height
            for j in range(len(x))
            if j != i
        )
        for i in range(len(x))
    ]


def _whiskers(intervals: list[tuple[float, float, float]]) -> dict[str, object]:
    return {
        "array": [100 * (high - point) for _, point, high in intervals],
        "arrayminus": [100 * (point - low) for low, point, _ in intervals],
        "color": "var(--span)",
        "thickness": 1.2,
        "width": 0,
    }


def _flips(report: Report, rows: list[AgreementRow], protocol: str) -> Figure | None:
    """Documents lost to the left, gained to the right, for every student; fewest losses on top."""
    known = [
        (report.checkpoints[row.checkpoint].label, row, row.lost.point, row.gained.point)
        for row in rows
        if row.lost.point is not None and row.gained.point is not None
    ]
    if not known:
        return None
    known.sort(key=lambda each: each[2])
    places = list(range(len(known)))
    traces = [
        go.Bar(
            y=places,
            x=values,
            orientation="h",
            name=name,
            marker={"color": paint},
            hovertext=[
                text(f"{label}: {name} {formatting.estimate(getattr(row, name))} %")
                for label, row, _, _ in known
            ],
            hoverinfo="text",
        )
        for name, values, paint in (
            ("lost", [-100 * lost for _, _, lost, _ in known], "var(--loss)"),
            ("gained", [100 * gained for *_, gained in known], "var(--gain)"),
        )
    ]
    return figure(
        traces,
        {
            "barmode": "relative",
            "bargap": 0.25,
            "yaxis": {
                "tickvals": places,
                "ticktext": [text(each[0]) for each in known],
                "autorange": "reversed",
                "showgrid": False,
            },
            "xaxis": {"title": {"text": "% of documents"}, "zeroline": True},
        },
        title=f"Flips, {formatting.PROTOCOL_TITLES[protocol]}",
        caption="Documents that only the teacher has right (lost) or only the student (gained).",
        height=max(240, 20 * len(known) + 70),
        table=Table(
            ("model", "lost %", "gained %", "retained %"),
            tuple(
                (
                    label,
                    formatting.estimate(row.lost),
                    formatting.estimate(row.gained),
                    formatting.estimate(row.retained),
                )
                for label, row, _, _ in known
            ),
        ),
    )


def _tolerance(report: Report, protocol: str) -> Figure | None:
    """Tolerance curves over the informative benchmarks, or over all where none is informative."""
    every = [row for row in report.tolerances if row.protocol == protocol]
    scope = INFORMATIVE if any(row.scope == INFORMATIVE for row in every) else ALL
    rows = sorted(
        (row for row in every if row.scope == scope and len(row.benchmarks) > 1),
        key=lambda row: row.critical_half.point,
    )
    if not rows:
        return None
    labels = [report.checkpoints[row.checkpoint].label for row in rows]
    return curves(
        [
            Curve(
                label,
                tuple(
                    Point(100 * alpha, 100 * share.point)
                    for alpha, share in zip(row.alphas, row.curve, strict=True)
                ),
            )
            for label, row in zip(labels, rows, strict=True)
        ],
        Axis("tolerance α, % of the teacher's score"),
        Axis(f"C(α), % of {'informative ' if scope == INFORMATIVE else ''}benchmarks", low=0),
        title=f"Tolerance, {formatting.PROTOCOL_TITLES[protocol]}",
        caption=(
            "Share of benchmarks on which a student is within α of its teacher; α* is where it reaches half "
            "(arXiv 2603.15590)."
        ),
        height=320,
        is_step=True,
        table=Table(
            ("model", "α*, %", "95 % interval", "all benchmarks within, %"),
            tuple(
                (
                    label,
                    f"{100 * row.critical_half.point:.1f}",
                    formatting.span(row.critical_half),
                    f"{100 * row.critical_all:.1f}",
                )
                for label, row in zip(labels, rows, strict=True)
            ),
        ),
    )
