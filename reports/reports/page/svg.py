"""Small figures as SVG text. Positions are percentages, so that figures stretch and letters do not."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from evalsuite.reports.statistics.interval import Interval


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear (or logarithmic) axis from `low` to `high` with ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def at(self, value: float) -> float:
        """Position in per cent of the width, held inside 0 … 100."""
        low, high, x = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        share = (x - low) / (high - low) if high > low else 0.5
        return round(100 * min(1.0, max(0.0, share)), 2)


def nice_axis(values: Sequence[float], include: Sequence[float] = (), steps: int = 5) -> Axis:
    """An axis of round numbers around `values`."""
    every = [value for value in (*values, *include) if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(every), max(every)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / steps
    scale = 10 ** math.floor(math.log10(raw))
    step = next(s * scale for s in (1, 2, 2.5, 5, 10) if s * scale >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    ticks = tuple(round(i * step, 10) for i in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], ticks)


def log_axis(values: Sequence[float], *, powers_of_two: bool = False) -> Axis:
    """A logarithmic axis that starts and ends a little outside positive `values`; ticks at the values."""
    ticks = tuple(sorted(set(values)))
    if len(ticks) > 7:
        ticks = tuple(ticks[round(i * (len(ticks) - 1) / 6)] for i in range(7))
    room = 1.15 if not powers_of_two else 1.3
    return Axis(min(values) / room, max(values) * room, ticks, log=True)


def interval_mark(interval: Interval, axis: Axis, label: str, *, reference: float | None = None) -> Markup:
    """A bar from end to end of an interval with its point, on a track with the axis's ticks.

    Args:
        interval: in the axis's unit.
        axis: shared by the rows of a table.
        label: what a screen reader says.
        reference: where a dashed line stands, such as the teacher's 100 %.
    """
    low, point, high = axis.at(interval.low), axis.at(interval.point), axis.at(interval.high)
    parts = [
        f'<line class="grid" x1="{axis.at(tick)}%" x2="{axis.at(tick)}%" y1="0" y2="28"/>'
        for tick in axis.ticks[1:-1]
    ]
    if reference is not None:
        parts.append(
            f'<line class="ref" x1="{axis.at(reference)}%" x2="{axis.at(reference)}%" y1="0" y2="28"/>'
        )
    parts.append(
        f'<rect class="span" x="{low}%" width="{max(high - low, 0.4):.2f}%" y="9" height="10" rx="3"/>'
    )
    for end in (low, high):
        parts.append(f'<line class="end" x1="{end}%" x2="{end}%" y1="7" y2="21"/>')
    parts.append(f'<circle class="point" cx="{point}%" cy="14" r="4.5"/>')
    return Markup(
        f'<svg class="mark" width="100%" height="28" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def axis_mark(axis: Axis, suffix: str = "") -> Markup:
    """The numbers of an axis, for a table's head."""
    parts = []
    for tick in axis.ticks:
        x = axis.at(tick)
        anchor = "start" if x < 4 else "end" if x > 96 else "middle"
        parts.append(f'<text x="{x}%" y="11" text-anchor="{anchor}">{tick:g}{escape(suffix)}</text>')
    return Markup(f'<svg class="axis" width="100%" height="14" aria-hidden="true">{"".join(parts)}</svg>')


@dataclass(frozen=True, slots=True)
class Dumbbell:
    """Teacher and student under one protocol."""

    kind: str
    """CSS class: `ranked` or `written`."""
    teacher: float
    student: float
    label: str


def dumbbells(pairs: Sequence[Dumbbell], axis: Axis) -> Markup:
    """Teacher (ring) to student (disc) per protocol, one under the other."""
    height = 20 * len(pairs) + 8
    parts = [
        f'<line class="grid" x1="{axis.at(t)}%" x2="{axis.at(t)}%" y1="0" y2="{height}"/>' for t in axis.ticks
    ]
    for index, pair in enumerate(pairs):
        y = 14 + 20 * index
        teacher, student = axis.at(pair.teacher), axis.at(pair.student)
        parts.append(
            f'<g class="{pair.kind}"><title>{escape(pair.label)}</title>'
            f'<line class="stem" x1="{teacher}%" x2="{student}%" y1="{y}" y2="{y}"/>'
            f'<circle class="ring" cx="{teacher}%" cy="{y}" r="5"/>'
            f'<circle class="disc" cx="{student}%" cy="{y}" r="5"/></g>'
        )
    label = escape("; ".join(pair.label for pair in pairs))
    return Markup(
        f'<svg class="bells" width="100%" height="{height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    )


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


def curves(
    series: Sequence[Curve],
    x_axis: Axis,
    y_axis: Axis,
    *,
    label: str,
    x_words: Sequence[str],
    y_suffix: str = "",
    reference: float | None = None,
    height: int = 240,
) -> Markup:
    """Curves over a shared x axis with whiskers; each series has its own colour, shape and dash.

    Args:
        series: at most eight.
        x_axis: positions of the ticks.
        y_axis: likewise; its low end is at the bottom.
        label: what a screen reader says.
        x_words: a text per tick of the x axis.
        y_suffix: follows the numbers of the y axis.
        reference: a dashed horizontal line, such as the teacher's.
        height: of the plot, in pixels.
    """
    left, bottom = 44, 24
    parts = []

    def y_of(value: float) -> float:
        return round(height - 8 - y_axis.at(value) / 100 * (height - 16), 1)

    for tick in y_axis.ticks:
        y = y_of(tick)
        parts.append(f'<line class="grid" x1="0" x2="100%" y1="{y}" y2="{y}"/>')
        parts.append(
            f'<text class="tick" x="-8" y="{y + 4}" text-anchor="end">{tick:g}{escape(y_suffix)}</text>'
        )
    if reference is not None:
        y = y_of(reference)
        parts.append(f'<line class="ref" x1="0" x2="100%" y1="{y}" y2="{y}"/>')
    for tick, word in zip(x_axis.ticks, x_words, strict=True):
        x = x_axis.at(tick)
        parts.append(f'<line class="stub" x1="{x}%" x2="{x}%" y1="{height}" y2="{height + 5}"/>')
        parts.append(
            f'<text class="tick" x="{x}%" y="{height + 19}" text-anchor="middle">{escape(word)}</text>'
        )
    for index, curve in enumerate(series):
        parts.append(_curve(curve, index, x_axis, y_of))
    return Markup(
        f'<svg class="curves" width="100%" height="{height + bottom}" role="img" aria-label="{escape(label)}">'
        f'<svg class="plot" x="{left}" width="100%" height="{height + bottom}" overflow="visible">'
        f"{''.join(parts)}</svg></svg>"
    )


def _curve(curve: Curve, index: int, x_axis: Axis, y_of: "type[float] | object") -> str:
    assert callable(y_of)
    points = sorted(curve.points, key=lambda point: point.x)
    parts = []
    for a, b in zip(points, points[1:], strict=False):
        parts.append(
            f'<line class="stem" x1="{x_axis.at(a.x)}%" y1="{y_of(a.y)}" x2="{x_axis.at(b.x)}%" y2="{y_of(b.y)}"/>'
        )
    for point in points:
        x, y = x_axis.at(point.x), y_of(point.y)
        title = f"<title>{escape(point.label or curve.name)}</title>"
        whisker = ""
        if point.low is not None and point.high is not None:
            whisker = (
                f'<line class="whisker" x1="{x}%" x2="{x}%" y1="{y_of(point.low)}" y2="{y_of(point.high)}"/>'
            )
        parts.append(f'<g>{title}{whisker}<circle class="disc" cx="{x}%" cy="{y}" r="4.5"/></g>')
    return f'<g class="series s{index % 8}">{"".join(parts)}</g>'


def rank_change(
    labels: Sequence[str], before: Sequence[int], after: Sequence[int], crossing: Sequence[bool]
) -> Markup:
    """Lines from the rank under log-likelihood to the rank under generation.

    Args:
        labels: of the checkpoints.
        before: position of each, from 0, on the left.
        after: position on the right.
        crossing: whether a line is drawn to be seen, as it changes order with another.
    """
    step, top = 30, 16
    height = top + step * len(labels)
    parts = []
    for label, one, other, crosses in zip(labels, before, after, crossing, strict=True):
        y1, y2 = top + step * one, top + step * other
        kind = "cross" if crosses else "keep"
        parts.append(
            f'<g class="{kind}"><title>{escape(label)}: {one + 1} ranked, {other + 1} written</title>'
            f'<line x1="0" x2="100%" y1="{y1}" y2="{y2}"/>'
            f'<circle cx="0" cy="{y1}" r="4.5"/><circle cx="100%" cy="{y2}" r="4.5"/></g>'
        )
    words = "; ".join(f"{n}: {a + 1} to {b + 1}" for n, a, b in zip(labels, before, after, strict=True))
    return Markup(
        f'<svg class="ranks" width="100%" height="{height}" overflow="visible" role="img" '
        f'aria-label="Rank when ranked to rank when written. {escape(words)}">{"".join(parts)}</svg>'
    )
