"""Figures of their own: curves over an axis, ranks that change, layers that were kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from markupsafe import Markup

from evalsuite.reports.page.axes import Axis, nice_axis
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
    marker: float | None = None,
) -> Markup:
    """Curves with whiskers; each series has its own colour and dash.

    Args:
        series: at most eight have looks of their own.
        plot: the axes.
        label: what a screen reader says.
        x_words: a text per tick of the x axis.
        y_suffix: follows the numbers of the y axis.
        reference: a dashed horizontal line, such as the teacher's.
        marker: a dashed vertical line, such as where a search stopped.
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
    if marker is not None:
        x = plot.x(marker)
        parts.append(element("line", kind="ref", x1=x, x2=x, y1=0, y2=plot.height))
    for tick, word in zip(plot.x_axis.ticks, x_words, strict=True):
        x, bottom = plot.x(tick), plot.height
        parts.append(element("line", kind="stub", x1=x, x2=x, y1=bottom, y2=bottom + 5))
        parts.append(element("text", word, kind="tick", x=x, y=bottom + 20, text_anchor="middle"))
    parts += [_curve(curve, index, plot) for index, curve in enumerate(series)]
    return figure("curves", plot.height + 26, label, parts)


def _curve(curve: Curve, index: int, plot: Plot) -> Markup:
    points = sorted(curve.points, key=lambda point: point.x)
    # Several points at one place, such as seeds, are met in their middle.
    middles = [(x, fmean(p.y for p in group)) for x, group in groupby(points, key=lambda point: point.x)]
    # One line in a stretched frame of its own, so that its dashes run on through every point.
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
        # Many points in a row would hide their line; they keep their tooltips.
        kind = "disc" if len(points) <= 24 else "disc quiet"
        inside.append(element("circle", kind=kind, cx=x, cy=plot.y(point.y), r=4.5))
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


def bars(values: Sequence[float | None], kept: Sequence[int], label: str, height: int = 200) -> Markup:
    """One bar per layer, from 0, over a numbered axis; those of kept layers stand out. None leaves a gap."""
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
        title = element("title", f"layer {layer}: {value:.4g}{', kept' if layer in kept else ''}")
        kind = "kept" if layer in kept else "linear"
        parts.append(element("rect", title, kind=kind, **at, y=min(top, zero), height=size))
    return figure("layers", height + 24, label, parts)
