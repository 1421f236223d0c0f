"""Charts in SVG alone, for files and table cells: curves, layer strips and layer bars."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from markupsafe import Markup

from evalsuite.reports.figures.axes import Axis, nice_axis
from evalsuite.reports.figures.plots import Curve
from evalsuite.reports.figures.row_charts import element, figure


@dataclass(frozen=True, slots=True)
class Plot:
    """Axes and height of a chart."""

    x_axis: Axis
    y_axis: Axis
    height: int = 240

    def y(self, value: float) -> float:
        """Pixels from the top."""
        return round(self.height * (1 - self.y_axis.at(value) / 100), 1)

    def x(self, value: float) -> str:
        """Percent from the left."""
        return f"{self.x_axis.at(value)}%"


def curves(
    series: Sequence[Curve],
    plot: Plot,
    *,
    label: str,
    x_labels: Sequence[str],
    y_suffix: str = "",
    reference: float | None = None,
    marker: float | None = None,
) -> Markup:
    """Curves with whiskers; each series has its own color and dash pattern.

    Args:
        series: up to eight distinct styles.
        plot: the axes.
        label: text for screen readers.
        x_labels: text per tick of the x axis.
        y_suffix: appended to the y tick labels.
        reference: a dashed horizontal line, such as the teacher's.
        marker: a dashed vertical line, such as the stopping point of a search.
    """
    parts = []
    for tick in plot.y_axis.ticks:
        y = plot.y(tick)
        parts.append(element("line", kind="grid", x1=0, x2="100%", y1=y, y2=y))
        text = f"{tick:,.10g}{y_suffix}"
        parts.append(element("text", text, kind="tick", x=-8, y=y + 4, text_anchor="end"))
    if reference is not None:
        y = plot.y(reference)
        parts.append(element("line", kind="ref", x1=0, x2="100%", y1=y, y2=y))
    if marker is not None:
        x = plot.x(marker)
        parts.append(element("line", kind="ref", x1=x, x2=x, y1=0, y2=plot.height))
    for tick, text in zip(plot.x_axis.ticks, x_labels, strict=True):
        x, bottom = plot.x(tick), plot.height
        parts.append(element("line", kind="stub", x1=x, x2=x, y1=bottom, y2=bottom + 5))
        parts.append(element("text", text, kind="tick", x=x, y=bottom + 20, text_anchor="middle"))
    parts += [_curve(curve, index, plot) for index, curve in enumerate(series)]
    return figure("curves", plot.height + 26, label, parts)


def _curve(curve: Curve, index: int, plot: Plot) -> Markup:
    points = sorted(curve.points, key=lambda point: point.x)
    # Points with the same x, such as seeds, are joined at their mean.
    middles = [(x, fmean(p.y for p in group)) for x, group in groupby(points, key=lambda point: point.x)]
    # One polyline in a stretched frame, so that the dash pattern continues through the points.
    line = element(
        "polyline",
        kind="stem",
        points=" ".join(f"{plot.x_axis.at(x)},{plot.y(y)}" for x, y in middles),
        fill="none",
        vector_effect="non-scaling-stroke",
    )
    frame = {"viewBox": f"0 0 100 {plot.height}", "preserveAspectRatio": "none", "overflow": "visible"}
    parts = [element("svg", line, width="100%", height=plot.height, **frame)]
    for point in points:
        x = plot.x(point.x)
        inside = [element("title", point.label or curve.name)]
        if point.low is not None and point.high is not None:
            low, high = plot.y(point.low), plot.y(point.high)
            inside.append(element("line", kind="whisker", x1=x, x2=x, y1=low, y2=high))
        # Many discs would hide the line; they stay for their tooltips.
        kind = "disc" if len(points) <= 24 else "disc quiet"
        inside.append(element("circle", kind=kind, cx=x, cy=plot.y(point.y), r=4.5))
        parts.append(element("g", Markup("").join(inside)))
    return element("g", Markup("").join(parts), kind=f"series s{index % 8}")


def layer_strip(layers: int, softmax: Sequence[int], label: str) -> Markup:
    """One square per layer; softmax layers are filled."""
    width = 100 / layers
    parts = []
    for layer in range(layers):
        name = "softmax" if layer in softmax else "linear"
        title = element("title", f"layer {layer}: {name}")
        at = {"x": f"{layer * width:.3f}%", "width": f"{width * 0.82:.3f}%"}
        parts.append(element("rect", title, kind=name, **at, y=0, height=18, rx=2))
    return figure("layers", 18, label, parts)


def layer_bars(
    values: Sequence[float | None], softmax: Sequence[int], label: str, height: int = 200
) -> Markup:
    """One bar per layer, from 0; softmax layers are highlighted, None leaves a gap."""
    known = [value for value in values if value is not None]
    axis = nice_axis(known, include=[0.0], steps=3)
    plot = Plot(Axis(0, max(1, len(values)), ()), axis, height)
    parts = []
    for tick in axis.ticks:
        y = plot.y(tick)
        parts.append(element("line", kind="stub" if tick == 0 else "grid", x1=0, x2="100%", y1=y, y2=y))
        parts.append(element("text", f"{tick:,.6g}", kind="tick", x=-8, y=y + 4, text_anchor="end"))
    zero, width = plot.y(0), 100 / max(1, len(values))
    every = 1 if len(values) <= 12 else 2 if len(values) <= 18 else 5
    for layer, value in enumerate(values):
        if layer % every == 0:
            x = f"{(layer + 0.41) * width:.3f}%"
            parts.append(element("text", str(layer), kind="tick", x=x, y=height + 18, text_anchor="middle"))
        if value is None:
            continue
        top = plot.y(value)
        size = max(round(abs(top - zero), 1), 1)
        at = {"x": f"{layer * width:.3f}%", "width": f"{width * 0.82:.3f}%"}
        title = element("title", f"layer {layer}: {value:.4g}{', softmax' if layer in softmax else ''}")
        kind = "softmax" if layer in softmax else "linear"
        parts.append(element("rect", title, kind=kind, **at, y=min(top, zero), height=size))
    return figure("layers", height + 24, label, parts)
