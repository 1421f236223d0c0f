"""Inference cost: speed and memory by context length."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import plotly.graph_objects as go

from evalsuite.reports import formatting
from evalsuite.reports.analysis.rows import AverageRow
from evalsuite.reports.analysis.scopes import INFORMATIVE
from evalsuite.reports.page.axes import log_axis
from evalsuite.reports.page.figures import Figure, Table, figure, text
from evalsuite.reports.page.plots import Axis, Curve, Point, curves
from evalsuite.reports.page.section import section
from evalsuite.reports.records.sidecars import EfficiencyRow
from evalsuite.reports.report import Report


@dataclass(frozen=True, slots=True)
class CostRow:
    """One line of the efficiency table."""

    label: str
    context: str
    batch: str
    prefill: str
    decode: str
    state: str
    peak: str
    device: str


def cost_rows(report: Report) -> list[CostRow]:
    """One row per efficiency record, in the order of the checkpoints."""
    order = {checkpoint.plan.weights_id: i for i, checkpoint in enumerate(report.checkpoints)}
    rows = []
    for cost in sorted(
        report.efficiency, key=lambda c: (order.get(c.weights_id, len(order)), c.context, c.batch)
    ):
        index = order.get(cost.weights_id)
        rows.append(
            CostRow(
                label=report.checkpoints[index].label if index is not None else cost.weights_id,
                context=formatting.tokens(cost.context),
                batch=str(cost.batch),
                prefill=_rate(cost.prefill_tokens_per_second),
                decode=_rate(cost.decode_tokens_per_second),
                state=formatting.NOTHING if cost.state_bytes is None else formatting.bytes_(cost.state_bytes),
                peak=formatting.NOTHING if cost.peak_bytes is None else formatting.bytes_(cost.peak_bytes),
                device=cost.device,
            )
        )
    return rows


def cost_charts(report: Report) -> list[Figure]:
    """Speed and memory by context, one curve per checkpoint, at the most frequent batch size and device."""
    kinds: list[tuple[str, str, float, Callable[[EfficiencyRow], float | None]]] = [
        ("Decode speed", "tokens/s; higher is faster", 1, lambda cost: cost.decode_tokens_per_second),
        ("Prefill speed", "tokens/s; higher is faster", 1, lambda cost: cost.prefill_tokens_per_second),
        ("Peak memory", "GiB; lower is better", 2**30, lambda cost: cost.peak_bytes),
        ("State per sequence", "MiB; lower is better", 2**20, lambda cost: cost.state_bytes),
    ]
    return [chart for kind in kinds for chart in _charts(report, *kind)]


def _charts(
    report: Report, title: str, unit: str, scale: float, value_of: Callable[[EfficiencyRow], float | None]
) -> list[Figure]:
    found = [(cost, value) for cost in report.efficiency if (value := value_of(cost)) is not None]
    if not found:
        return []
    batch, device = Counter((cost.batch, cost.device) for cost, _ in found).most_common(1)[0][0]
    labels = {checkpoint.plan.weights_id: checkpoint.label for checkpoint in report.checkpoints}
    families: dict[str, list[Point]] = {}
    for cost, value in found:
        if (cost.batch, cost.device) == (batch, device):
            name = labels.get(cost.weights_id, cost.weights_id)
            label = f"{name} at {formatting.tokens(cost.context)}: {value / scale:,.4g} {unit.split(';')[0]}"
            families.setdefault(name, []).append(Point(cost.context, value / scale, label=label))
    series = [Curve(name, tuple(points)) for name, points in families.items()]
    contexts = [point.x for curve in series for point in curve.points]
    if len(set(contexts)) < 2:
        return []
    ticks = [(tick, formatting.tokens(round(tick))) for tick in log_axis(contexts).ticks]
    return [
        curves(
            series,
            Axis("context (tokens)", ticks=ticks, is_log=True),
            Axis(unit.partition(";")[0], low=0),
            title=f"{title} by context",
            caption=", ".join(part for part in (f"batch {batch}", device, unit) if part),
        )
    ]


def _rate(value: float | None) -> str:
    return formatting.NOTHING if value is None else formatting.count(round(value))


def _leading(report: Report, student: int, protocol: str) -> AverageRow | None:
    """Its average over the informative benchmarks, or over all where none is."""
    return report.average(student, protocol, INFORMATIVE) or report.average(student, protocol)


def _pareto(report: Report) -> list[Figure]:
    """Recovery against decode speed at the longest context that all measured students share."""
    index = {checkpoint.plan.weights_id: i for i, checkpoint in enumerate(report.checkpoints)}
    speeds: dict[tuple[int, int, str], dict[int, float]] = {}
    for cost in report.efficiency:
        student = index.get(cost.weights_id)
        if student in report.students() and cost.decode_tokens_per_second is not None:
            place = (cost.context, cost.batch, cost.device)
            speeds.setdefault(place, {})[student] = cost.decode_tokens_per_second
    protocol = report.protocols[0]
    if not speeds:
        return []
    place, found = max(speeds.items(), key=lambda each: (len(each[1]), each[0]))
    points = [
        (speed, 100 * row.recovery.point, report.checkpoints[student].label)
        for student, speed in sorted(found.items(), key=lambda each: -each[1])
        if (row := _leading(report, student, protocol)) is not None and row.recovery.point is not None
    ]
    if len(points) < 2:
        return []
    front: list[tuple[float, float, str]] = []
    for point in points:
        if not front or point[1] > front[-1][1]:
            front.append(point)
    context, batch, device = place
    title = f"Recovery against decode speed, {formatting.PROTOCOL_TITLES[protocol]}"
    traces = [
        go.Scatter(
            x=[speed for speed, _, _ in front],
            y=[value for _, value, _ in front],
            mode="lines",
            line={"color": "var(--ref)", "width": 1.3, "dash": "dot"},
            hoverinfo="skip",
        ),
        go.Scatter(
            x=[speed for speed, _, _ in points],
            y=[value for _, value, _ in points],
            mode="markers+text" if len(points) <= 12 else "markers",
            text=[text(label) for _, _, label in points],
            textposition="top center",
            marker={"size": 9, "color": "var(--accent)"},
            hovertext=[
                text(f"{label}: {value:.1f} %, {speed:,.0f} tokens/s") for speed, value, label in points
            ],
            hoverinfo="text",
        ),
    ]
    return [
        figure(
            traces,
            {
                "xaxis": {"title": {"text": "decode, tokens/s"}, "exponentformat": "B"},
                "yaxis": {"title": {"text": "recovery, %"}},
                "showlegend": False,
            },
            title=title,
            caption=f"Context {formatting.tokens(context)}, batch {batch}"
            + (f", {device}" if device else "")
            + ". Dotted: students that none beats in both (Pareto front).",
            table=Table(
                ("model", "decode, tokens/s", "recovery %"),
                tuple((label, f"{speed:,.0f}", f"{value:.1f}") for speed, value, label in points),
            ),
        )
    ]


@dataclass(frozen=True, slots=True)
class CostView:
    """The section."""

    rows: list[CostRow]
    charts: list[Figure]


@section("cost", "Efficiency", order=70)
def cost_view(report: Report) -> CostView | None:
    """Charts and table; None without efficiency records."""
    rows = cost_rows(report)
    return CostView(rows, [*_pareto(report), *cost_charts(report)]) if rows else None
