"""What checkpoints cost: speed and memory by context."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from evalsuite.reports import words
from evalsuite.reports.extras import Cost
from evalsuite.reports.page.axes import log_axis, nice_axis
from evalsuite.reports.page.charts import Curve, Plot, Point, curves
from evalsuite.reports.page.scaling_view import LOOKS, ChartView
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
    """Efficiency records, in the order of the checkpoints."""
    order = {subject.plan.weights_id: i for i, subject in enumerate(report.subjects)}
    rows = []
    for cost in sorted(report.costs, key=lambda c: (order.get(c.weights_id, len(order)), c.context, c.batch)):
        index = order.get(cost.weights_id)
        rows.append(
            CostRow(
                label=report.subjects[index].label if index is not None else cost.weights_id,
                context=words.tokens(cost.context),
                batch=str(cost.batch),
                prefill=_rate(cost.prefill_tokens_per_second),
                decode=_rate(cost.decode_tokens_per_second),
                state=words.NOTHING if cost.state_bytes is None else words.bytes_(cost.state_bytes),
                peak=words.NOTHING if cost.peak_bytes is None else words.bytes_(cost.peak_bytes),
                device=cost.device,
            )
        )
    return rows


def cost_charts(report: Report) -> list[ChartView]:
    """Speed and memory by context, one curve per checkpoint, at the batch size and device of most."""
    kinds: list[tuple[str, str, float, Callable[[Cost], float | None]]] = [
        ("Decode speed", "tokens/s; higher is faster", 1, lambda cost: cost.decode_tokens_per_second),
        ("Prefill speed", "tokens/s; higher is faster", 1, lambda cost: cost.prefill_tokens_per_second),
        ("Peak memory", "GiB; lower is better", 2**30, lambda cost: cost.peak_bytes),
        ("State per sequence", "MiB; lower is better", 2**20, lambda cost: cost.state_bytes),
    ]
    return [chart for kind in kinds for chart in _charts(report, *kind)]


def _charts(
    report: Report, title: str, unit: str, scale: float, value_of: Callable[[Cost], float | None]
) -> list[ChartView]:
    found = [(cost, value) for cost in report.costs if (value := value_of(cost)) is not None]
    if not found:
        return []
    batch, device = Counter((cost.batch, cost.device) for cost, _ in found).most_common(1)[0][0]
    labels = {subject.plan.weights_id: subject.label for subject in report.subjects}
    families: dict[str, list[Point]] = {}
    for cost, value in found:
        if (cost.batch, cost.device) == (batch, device):
            name = labels.get(cost.weights_id, cost.weights_id)
            said = f"{name} at {words.tokens(cost.context)}: {value / scale:,.4g} {unit.split(';')[0]}"
            families.setdefault(name, []).append(Point(cost.context, value / scale, label=said))
    series = [Curve(name, tuple(points)) for name, points in families.items()]
    points = [point for curve in series for point in curve.points]
    if len({point.x for point in points}) < 2:
        return []
    plot = Plot(log_axis([p.x for p in points]), nice_axis([p.y for p in points], include=[0.0]), 200)
    caption = ", ".join(part for part in (f"batch {batch}", device, unit) if part)
    parts = [series[start : start + LOOKS] for start in range(0, len(series), LOOKS)]
    views = []
    for number, part in enumerate(parts, 1):
        whole = f"{title} by context" + (f" ({number} of {len(parts)})" if len(parts) > 1 else "")
        chart = curves(
            part,
            plot,
            label=f"{whole}. " + "; ".join(point.label for curve in part for point in curve.points),
            x_words=[words.tokens(round(tick)) for tick in plot.x_axis.ticks],
        )
        legend = tuple(curve.name for curve in part)
        views.append(ChartView(whole, caption, chart, legend, unit, "context in tokens"))
    return views


def _rate(value: float | None) -> str:
    return words.NOTHING if value is None else words.count(round(value))
