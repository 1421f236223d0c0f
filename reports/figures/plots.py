"""The kinds of figures that several sections share: curves, scatters, heatmaps and rank changes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import isfinite, log10
from statistics import fmean
from typing import Any

import plotly.graph_objects as go

from evalsuite.reports import formatting
from evalsuite.reports.figures.figure import (
    DASHES,
    SERIES_COLORS,
    SYMBOLS,
    Figure,
    Values,
    color,
    figure,
    label_positions,
    text,
)
from evalsuite.reports.statistics.intervals import Interval

FEW_MARKS = 8
"""A scatter of more checkpoints takes the whole width, so that their names have room."""
GREY_POINTS = 20
"""A grey line has fewer than twice as many."""
WIDE, NARROW, MARGIN = 800, 460, 80
"""Pixels of a figure and of what is around its plot."""
Ticks = Sequence[tuple[float, str]]
"""Positions on an axis and their labels."""


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a curve, with its interval if it has one."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    label: str = ""
    """Shown on hover."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A named series."""

    name: str
    points: tuple[Point, ...]
    family: str = ""
    """Curves of one family share a panel of small multiples."""
    line: tuple[tuple[float, float], ...] = ()
    """Points of a line, such as a fitted one, which is drawn instead of the one through the points."""


@dataclass(frozen=True, slots=True)
class Mark:
    """One checkpoint of a scatter: two fractions with their intervals."""

    name: str
    x: Interval
    y: Interval
    label: str
    """Shown on hover."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of curves or of a scatter."""

    title: str
    suffix: str = ""
    ticks: Ticks = ()
    """Labeled positions; empty leaves the choice to Plotly."""
    is_log: bool = False
    low: float | None = None
    """Value that the axis must include."""

    def layout(self) -> dict[str, Any]:
        """The axis in Plotly's terms."""
        found: dict[str, Any] = {"title": {"text": text(self.title)}, "exponentformat": "B"}
        if self.suffix:
            found["ticksuffix"] = self.suffix
        if self.ticks:
            found |= {
                "tickvals": [value for value, _ in self.ticks],
                "ticktext": [text(label) for _, label in self.ticks],
            }
        if self.is_log:
            found["type"] = "log"
        if self.low == 0:
            found["rangemode"] = "tozero"
        return found


def curves(
    series: Sequence[Curve],
    x_axis: Axis,
    y_axis: Axis,
    *,
    title: str,
    caption: str = "",
    reference: float | None = None,
    marker: float | None = None,
    height: int = 300,
    is_step: bool = False,
    table: Values | None = None,
    behind: Sequence[Curve] = (),
) -> Figure:
    """Curves with intervals; points with the same x, such as seeds, are joined at their mean.

    Args:
        series: one legend entry each.
        x_axis: of all series.
        y_axis: of all series.
        title: heading.
        caption: one or two sentences.
        reference: a dotted horizontal line, such as the teacher's.
        marker: a dotted vertical line, such as the stopping point of a search.
        height: pixels of the plot without its legend.
        is_step: whether a value holds until the next point.
        table: the values, if not one row per point.
        behind: curves that are grey lines without names, in front of which those of `series` stand.
    """
    traces = [trace for index, curve in enumerate(series) for trace in _curve(curve, index, is_step)]
    shapes = []
    if reference is not None:
        shapes.append(_line(x0=0, x1=1, xref="paper", y0=reference, y1=reference))
    if marker is not None:
        shapes.append(_line(y0=0, y1=1, yref="paper", x0=marker, x1=marker))
    x_layout = x_axis.layout()
    if behind:
        traces = [_grey(behind, is_step), *traces]
        places = {point.x for curve in series for point in curve.points}
        if len(places) > 1:
            x_layout["range"] = _range(places, x_axis.is_log)
    layout = {
        "xaxis": x_layout,
        "yaxis": y_axis.layout(),
        "shapes": shapes,
        "showlegend": len(series) > 1,
    }
    return figure(
        traces,
        layout,
        title=title,
        caption=caption,
        height=height,
        table=table or _point_table(series, x_axis, y_axis),
        is_wide=len(series) > SERIES_COLORS,
    )


def scatter(
    marks: Sequence[Mark],
    x_axis: Axis,
    y_axis: Axis,
    *,
    title: str,
    caption: str,
    table: Values,
    reference: float | None = None,
) -> Figure:
    """Checkpoints at two fractions, in percent, with their intervals.

    Args:
        marks: one each; a name that would overlap another is left to the hover text.
        x_axis: in percent.
        y_axis: in percent.
        title: heading.
        caption: one or two sentences.
        table: the values.
        reference: a dotted horizontal line, as a fraction.
    """
    x, y = [100 * mark.x.point for mark in marks], [100 * mark.y.point for mark in marks]
    is_wide, height = len(marks) > FEW_MARKS, max(380, 20 * len(marks) + 70)
    level = None if reference is None else 100 * reference
    # Most marks lie below the line.
    order = ("top center", "bottom center") if level is None else ("bottom center", "top center")
    places = label_positions(
        [mark.name for mark in marks],
        list(zip(x, y, strict=True)),
        (_ends([mark.x for mark in marks], x_axis, None), _ends([mark.y for mark in marks], y_axis, level)),
        ((WIDE if is_wide else NARROW) - MARGIN, height - MARGIN),
        (*order, "middle right", "middle left"),
        level,
    )
    trace = go.Scatter(
        x=x,
        y=y,
        error_x=_whiskers([mark.x for mark in marks]),
        error_y=_whiskers([mark.y for mark in marks]),
        mode="markers+text",
        text=[text(mark.name) if place else "" for mark, place in zip(marks, places, strict=True)],
        textposition=[place or order[0] for place in places],
        marker={"size": 9, "color": "var(--accent)"},
        hovertext=[text(mark.label) for mark in marks],
        hoverinfo="text",
    )
    shapes = [] if level is None else [_line(x0=0, x1=1, xref="paper", y0=level, y1=level)]
    layout = {"xaxis": x_axis.layout(), "yaxis": y_axis.layout(), "shapes": shapes, "showlegend": False}
    return figure([trace], layout, title=title, caption=caption, height=height, table=table, is_wide=is_wide)


def _ends(intervals: Sequence[Interval], axis: Axis, level: float | None) -> tuple[float, float]:
    """Both ends of an axis in percent, nearly as Plotly chooses them."""
    values = [100 * end for each in intervals for end in (each.low, each.high) if isfinite(end)]
    values += [value for value in (level, axis.low) if value is not None]
    rest = 0.05 * (max(values) - min(values))
    return min(values) if axis.low is not None else min(values) - rest, max(values) + rest


def _whiskers(intervals: Sequence[Interval]) -> dict[str, object]:
    return {
        "array": [formatting.bound(100 * (each.high - each.point)) for each in intervals],
        "arrayminus": [formatting.bound(100 * (each.point - each.low)) for each in intervals],
        "color": "var(--span)",
        "thickness": 1.2,
        "width": 0,
    }


def _curve(curve: Curve, index: int, is_step: bool) -> list[go.Scatter]:
    points = sorted(curve.points, key=lambda point: point.x)
    style: dict[str, Any] = {
        "name": text(curve.name),
        "legendgroup": str(index),
        "line": {
            "color": color(index),
            "width": 2,
            "dash": DASHES[index // SERIES_COLORS % len(DASHES)],
            "shape": "hv" if is_step else "linear",
        },
    }
    dots: dict[str, Any] = {
        "x": [point.x for point in points],
        "y": [point.y for point in points],
        "marker": {"color": color(index), "size": 7, "symbol": SYMBOLS[index % len(SYMBOLS)]},
    }
    if any(point.label for point in points):
        dots |= {"hovertext": [text(point.label) for point in points], "hoverinfo": "text"}
    if any(point.low is not None for point in points):
        dots["error_y"] = {
            "array": [formatting.bound((point.high or point.y) - point.y) for point in points],
            "arrayminus": [
                formatting.bound(point.y - (point.low if point.low is not None else point.y))
                for point in points
            ],
            "thickness": 1.2,
            "width": 0,
        }
    if not curve.line and len({point.x for point in points}) == len(points):
        # Many discs would hide the line.
        return [go.Scatter(mode="lines+markers" if len(points) <= 24 else "lines", **dots, **style)]
    middles = curve.line or _middles(points)
    line = go.Scatter(
        x=[x for x, _ in middles], y=[y for _, y in middles], mode="lines", hoverinfo="skip", **style
    )
    return [line, go.Scatter(mode="markers", showlegend=False, **dots, **style)]


def _middles(points: Sequence[Point]) -> list[tuple[float, float]]:
    """Each x of sorted points with the mean of their y."""
    return [(x, fmean(p.y for p in group)) for x, group in groupby(points, key=lambda point: point.x)]


def _grey(series: Sequence[Curve], is_step: bool) -> go.Scatter:
    """All curves as one trace, which a point without a value interrupts."""
    x: list[float | None] = []
    y: list[float | None] = []
    for curve in series:
        middles = _middles(sorted(curve.points, key=lambda point: point.x))
        # Every panel has the grey lines of all others; a step is where it is.
        stride = 1 if is_step else 1 + len(middles) // GREY_POINTS
        x += [*(place for place, _ in middles[::stride]), None]
        y += [*(mean for _, mean in middles[::stride]), None]
    line = {"color": "var(--ref)", "width": 1, "shape": "hv" if is_step else "linear"}
    return go.Scatter(x=x, y=y, mode="lines", line=line, opacity=0.4, hoverinfo="skip", showlegend=False)


def _range(values: Collection[float], is_log: bool) -> list[float]:
    """Both ends of an axis around values; exponents of ten on a logarithmic one."""
    at = [log10(value) for value in values] if is_log else values
    rest = 0.04 * (max(at) - min(at))
    return [min(at) - rest, max(at) + rest]


def _line(**place: Any) -> dict[str, Any]:
    return {"type": "line", "line": {"color": "var(--ref)", "width": 1.3, "dash": "dot"}, **place}


def _point_table(series: Sequence[Curve], x_axis: Axis, y_axis: Axis) -> Values:
    names = dict(x_axis.ticks)
    rows = []
    for curve in series:
        for point in sorted(curve.points, key=lambda point: point.x):
            interval = (
                ""
                if point.low is None or point.high is None
                else formatting.ends(point.low, point.high, "{:.4g}".format)
            )
            rows.append((curve.name, names.get(point.x, f"{point.x:,.6g}"), f"{point.y:.4g}", interval))
    columns = ("series", x_axis.title, y_axis.title, "95 % interval")
    if not any(row[3] for row in rows):
        return Values(columns[:3], tuple(row[:3] for row in rows))
    return Values(columns, tuple(rows))


def heatmap(
    columns: Sequence[str],
    rows: Sequence[str],
    values: Sequence[Sequence[float | None]],
    *,
    title: str,
    table: Values | None,
    caption: str = "",
    texts: Sequence[Sequence[str]] | None = None,
    hover: Sequence[Sequence[str]] | None = None,
    scale: Sequence[tuple[float, str]] = ((0.0, "var(--card)"), (1.0, "var(--shade)")),
    low: float | None = None,
    high: float | None = None,
    unit: str = "",
    trace: dict[str, Any] | None = None,
    row_height: int = 24,
    is_wide: bool = False,
) -> Figure:
    """A heatmap with the first row on top.

    Args:
        columns: labels.
        rows: labels.
        values: rows × columns; None leaves a cell empty.
        title: heading.
        table: the values; None where the section has a table of them.
        caption: one or two sentences.
        texts: printed in the cells.
        hover: text of each cell on hover.
        scale: color scale from `low` to `high`.
        low: value of its lower end; default: the smallest value.
        high: value of its upper end; default: the largest value.
        unit: title of the color bar; empty hides it.
        trace: further properties of the trace.
        row_height: pixels.
        is_wide: whether it fills a row of the page.
    """
    cells: dict[str, Any] = {
        "z": [list(row) for row in values],
        "colorscale": [list(each) for each in scale],
        "showscale": bool(unit),
        "xgap": 2,
        "ygap": 2,
        "hoverongaps": False,
        **(trace or {}),
    }
    if unit:
        cells["colorbar"] = {"title": {"text": text(unit), "side": "right"}, "thickness": 10}
    if low is not None and high is not None:
        cells |= {"zmin": low, "zmax": high}
    if texts is not None:
        cells |= {"text": [[text(each) for each in row] for row in texts], "texttemplate": "%{text}"}
    if hover is not None:
        cells |= {"hovertext": [[text(each) for each in row] for row in hover], "hoverinfo": "text"}
    plain = {"showgrid": False, "zeroline": False, "ticks": ""}
    layout = {
        "xaxis": {**_labels(columns), **plain, "side": "top"},
        "yaxis": {**_labels(rows), **plain, "autorange": "reversed"},
    }
    return figure(
        [go.Heatmap(**cells)],
        layout,
        title=title,
        caption=caption,
        table=table,
        height=row_height * len(rows) + 60,
        is_wide=is_wide,
    )


def _labels(labels: Sequence[str]) -> dict[str, Any]:
    """Tick labels at 0, 1, …; positions are numbers, as equal labels would be merged as categories."""
    return {"tickvals": list(range(len(labels))), "ticktext": [text(label) for label in labels]}


@dataclass(frozen=True, slots=True)
class Slope:
    """One student with its rank and score on both sides."""

    label: str
    left: int
    right: int
    left_text: str
    right_text: str


def slopes(
    lines: Sequence[Slope], heads: tuple[str, str], *, title: str, caption: str = "", table: Values
) -> Figure:
    """Lines from ranks on the left to ranks on the right, rank 0 on top; colors tell rise from fall."""
    traces = []
    for line in lines:
        hover = f"{line.label}: {heads[0]} {line.left_text} (#{line.left + 1}), "
        hover += f"{heads[1]} {line.right_text} (#{line.right + 1})"
        rise = line.left - line.right
        style = {"color": f"var(--{'accent' if rise > 0 else 'generation' if rise < 0 else 'ref'})"}
        traces.append(
            go.Scatter(
                x=[0, 1],
                y=[line.left, line.right],
                yaxis="y2" if line is lines[-1] and len(lines) > 1 else "y",
                mode="lines+markers",
                line={**style, "width": 2},
                marker={**style, "size": 8},
                name=text(line.label),
                hovertext=[text(hover)] * 2,
                hoverinfo="text",
                showlegend=False,
            )
        )
    by_left = sorted(lines, key=lambda line: line.left)
    by_right = sorted(lines, key=lambda line: line.right)
    bounds = [len(lines) - 0.5, -0.5]
    bare = {"showgrid": False, "zeroline": False, "range": bounds, "ticks": ""}
    layout = {
        "xaxis": {"showticklabels": False, "showgrid": False, "zeroline": False, "range": [-0.04, 1.04]},
        # Above the names: on a phone there is no room for both heads above the lines.
        "annotations": [
            {
                "text": text(head),
                "x": place,
                "xref": "paper",
                "xanchor": anchor,
                "y": 1,
                "yref": "paper",
                "yanchor": "bottom",
                "showarrow": False,
            }
            for head, place, anchor in zip(heads, (0, 1), ("right", "left"), strict=True)
        ],
        "margin": {"t": 24},
        "yaxis": {**_labels([f"{each.label} {each.left_text}" for each in by_left]), **bare},
        "yaxis2": {
            **_labels([f"{each.right_text} {each.label}" for each in by_right]),
            **bare,
            "overlaying": "y",
            "side": "right",
        },
    }
    return figure(
        traces, layout, title=title, caption=caption, table=table, height=24 * len(lines) + 50, is_wide=True
    )
