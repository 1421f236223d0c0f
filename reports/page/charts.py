"""Figures of their own: curves over an axis, ranks that change, layers that were kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from evalsuite.reports.page.axes import Axis
from evalsuite.reports.page.marks import element, figure

RANK_ROW = 34
"""Height of one line of a rank figure, in pixels; the style sheet has it too."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a curve, with its interval if it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """A named series."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """Where the values of a chart stand."""

    x_axis: Axis
    y_axis: Axis
    height: int = 240

    def y(self, value: float) -> float:
        """Pixels from the top."""
        return round(self.height * (1 - self.y_axis.at(value) / 100), 1)

    def x(self, value: float) -> str:
        """Per cent from the left."""
        return f"{self.x_axis.at(value)}%"


def curves(
    series: Sequence[Curve],
    plot: Plot,
    *,
    label: str,
    x_words: Sequence[str],
    y_suffix: str = "",
    reference: float | None = None,
) -> Markup:
    """Curves with whiskers; each series has its own colour and dash.

    Args:
        series: at most eight have looks of their own.
        plot: the axes.
        label: what a screen reader says.
        x_words: a text per tick of the x axis.
        y_suffix: follows the numbers of the y axis.
        reference: a dashed horizontal line, such as the teacher's.
    """
    parts = []
    for tick in plot.y_axis.ticks:
        y = plot.y(tick)
        parts.append(element("line", kind="grid", x1=0, x2="100%", y1=y, y2=y))
        word = f"{tick:,.10g}{y_suffix}"
        parts.append(element("text", word, kind="tick", x=-8, y=y + 4, text_anchor="end"))
    if reference is not None:
        y = plot.y(reference)
        parts.append(element("line", kind="ref", x1=0, x2="100%", y1=y, y2=y))
    for tick, word in zip(plot.x_axis.ticks, x_words, strict=True):
        x, bottom = plot.x(tick), plot.height
        parts.append(element("line", kind="stub", x1=x, x2=x, y1=bottom, y2=bottom + 5))
        parts.append(element("text", word, kind="tick", x=x, y=bottom + 20, text_anchor="middle"))
    parts += [_curve(curve, index, plot) for index, curve in enumerate(series)]
    return figure("curves", plot.height + 26, label, parts)


def _curve(curve: Curve, index: int, plot: Plot) -> Markup:
    points = sorted(curve.points, key=lambda point: point.x)
    parts = [
        element("line", kind="stem", x1=plot.x(a.x), y1=plot.y(a.y), x2=plot.x(b.x), y2=plot.y(b.y))
        for a, b in pairwise(points)
    ]
    for point in points:
        x = plot.x(point.x)
        inside = [element("title", point.label or curve.name)]
        if point.low is not None and point.high is not None:
            low, high = plot.y(point.low), plot.y(point.high)
            inside.append(element("line", kind="whisker", x1=x, x2=x, y1=low, y2=high))
        inside.append(element("circle", kind="disc", cx=x, cy=plot.y(point.y), r=4.5))
        parts.append(element("g", Markup("").join(inside)))
    return element("g", Markup("").join(parts), kind=f"series s{index % 8}")


def rank_lines(before: Sequence[int], after: Sequence[int], crossing: Sequence[bool], label: str) -> Markup:
    """Lines from positions on the left to positions on the right.

    Args:
        before: position of each, from 0.
        after: likewise.
        crossing: which lines change order with another, and are drawn to be seen.
        label: what a screen reader says.
    """
    parts = []
    for one, other, crosses in sorted(zip(before, after, crossing, strict=True), key=lambda item: item[2]):
        y1, y2 = RANK_ROW * one + RANK_ROW / 2, RANK_ROW * other + RANK_ROW / 2
        inside = [
            element("line", x1=0, x2="100%", y1=y1, y2=y2),
            element("circle", cx=0, cy=y1, r=4.5),
            element("circle", cx="100%", cy=y2, r=4.5),
        ]
        parts.append(element("g", Markup("").join(inside), kind="cross" if crosses else "keep"))
    return figure("ranks", RANK_ROW * len(before), label, parts)


def layer_strip(layers: int, kept: Sequence[int], label: str) -> Markup:
    """One square per layer; those that kept softmax are filled."""
    width = 100 / layers
    parts = []
    for layer in range(layers):
        word = "softmax" if layer in kept else "linear"
        title = element("title", f"layer {layer}: {word}")
        at = {"x": f"{layer * width:.3f}%", "width": f"{width * 0.82:.3f}%"}
        kind = "kept" if layer in kept else "linear"
        parts.append(element("rect", title, kind=kind, **at, y=0, height=18, rx=2))
    return figure("layers", 18, label, parts)


def bars(values: Sequence[float | None], kept: Sequence[int], label: str, height: int = 90) -> Markup:
    """One bar per layer, from 0; those of kept layers stand out. None leaves a gap."""
    known = [value for value in values if value is not None]
    top, bottom = max([0.0, *known]), min([0.0, *known])
    reach = (top - bottom) or 1.0
    zero = round(height * top / reach, 1)
    width = 100 / max(1, len(values))
    parts = [element("line", kind="stub", x1=0, x2="100%", y1=zero, y2=zero)]
    for layer, value in enumerate(values):
        if value is None:
            continue
        size = round(max(abs(value) / reach * height, 0.5), 1)
        at = {"x": f"{layer * width:.3f}%", "width": f"{width * 0.82:.3f}%"}
        y = round(zero - size if value >= 0 else zero, 1)
        title = element("title", f"layer {layer}: {value:.4g}")
        kind = "kept" if layer in kept else "linear"
        parts.append(element("rect", title, kind=kind, **at, y=y, height=size))
    return figure("layers", height, label, parts)
