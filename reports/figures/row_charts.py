"""Charts inside a table row: interval, dumbbell of teacher and student, stacked bar."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from evalsuite.reports.figures.axes import Axis
from evalsuite.reports.statistics.intervals import Interval


def element(name: str, text: str = "", **attributes: object) -> Markup:
    """An SVG element; attribute values are escaped, `_` in names is `-`, `kind` is the class."""
    formatted = "".join(
        f' {"class" if key == "kind" else key.replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
    )
    return Markup(f"<{name}{formatted}>{escape(text)}</{name}>")


def vertical(axis: Axis, value: float, kind: str, top: float, bottom: float) -> Markup:
    """A vertical line at a value of the axis."""
    x = f"{axis.at(value)}%"
    return element("line", kind=kind, x1=x, x2=x, y1=top, y2=bottom)


def figure(kind: str, height: float, label: str, parts: Sequence[Markup]) -> Markup:
    """An SVG that fills the width of its container; `label` is for screen readers."""
    inside = Markup("").join(parts)
    size: dict[str, object] = {"width": "100%", "height": height, "overflow": "visible"}
    return element("svg", inside, kind=kind, role="img", aria_label=label, **size)


def interval_mark(interval: Interval, axis: Axis, label: str, *, reference: float | None = None) -> Markup:
    """A bar over an interval with its point estimate, on the grid of the axis.

    Args:
        interval: in units of the axis.
        axis: shared by all rows of a table.
        label: text for screen readers.
        reference: position of a dashed line, such as the teacher's 100 %.
    """
    parts = [vertical(axis, tick, "grid", 0, 28) for tick in axis.ticks[1:-1] if tick != reference]
    if reference is not None:
        parts.append(vertical(axis, reference, "ref", 0, 28))
    low, high = axis.at(interval.low), axis.at(interval.high)
    width = f"{max(high - low, 0.4):.2f}%"
    parts.append(element("rect", kind="span", x=f"{low}%", width=width, y=10, height=8, rx=2))
    parts += [vertical(axis, end, "end", 8, 20) for end in (interval.low, interval.high)]
    parts.append(element("circle", kind="point", cx=f"{axis.at(interval.point)}%", cy=14, r=4.5))
    return figure("mark", 28, label, parts)


def axis_mark(axis: Axis, most: int = 4) -> Markup:
    """Tick labels of an axis for a table head, thinned to at most `most`.

    100 keeps its label if it is on the axis. Every second label is hidden on small screens.
    """
    stride = -(-len(axis.ticks) // most)
    start = axis.ticks.index(100.0) % stride if 100.0 in axis.ticks else 0
    parts = []
    numbered = axis.ticks[start::stride]
    parity = numbered.index(100.0) % 2 if 100.0 in numbered else 0
    for position, tick in enumerate(numbered):
        x = axis.at(tick)
        anchor = "start" if x < 3 else "end" if x > 97 else "middle"
        kind = "major" if position % 2 == parity else "minor"
        parts.append(element("text", f"{tick:g}", kind=kind, x=f"{x}%", y=11, text_anchor=anchor))
    size: dict[str, object] = {"width": "100%", "height": 14, "overflow": "visible"}
    return element("svg", Markup("").join(parts), kind="axis", aria_hidden="true", **size)


@dataclass(frozen=True, slots=True)
class Dumbbell:
    """Teacher and student under one protocol."""

    kind: str
    """CSS class: `loglikelihood` or `generation`."""
    teacher: float
    student: float
    label: str


def dumbbells(pairs: Sequence[Dumbbell], axis: Axis) -> Markup:
    """Teacher (ring) to student (disc), one line per protocol."""
    height = 20 * len(pairs) + 8
    parts = [vertical(axis, tick, "grid", 0, height) for tick in axis.ticks]
    for index, pair in enumerate(pairs):
        y = 14 + 20 * index
        teacher, student = f"{axis.at(pair.teacher)}%", f"{axis.at(pair.student)}%"
        inside = [
            element("title", pair.label),
            element("line", kind="stem", x1=teacher, x2=student, y1=y, y2=y),
            element("circle", kind="ring", cx=teacher, cy=y, r=5),
            element("circle", kind="disc", cx=student, cy=y, r=5),
        ]
        parts.append(element("g", Markup("").join(inside), kind=pair.kind))
    return figure("dumbbells", height, "; ".join(pair.label for pair in pairs), parts)


@dataclass(frozen=True, slots=True)
class Share:
    """One part of a stacked bar."""

    kind: str
    """CSS class."""
    value: float
    """0 … 1"""
    label: str


def stack(shares: Sequence[Share]) -> Markup:
    """A stacked bar of shares that add up to 1."""
    parts = []
    start = 0.0
    for share in shares:
        if share.value > 0:
            title = element("title", f"{share.label}: {100 * share.value:.1f} %")
            at = {"x": f"{100 * start:.2f}%", "width": f"{100 * share.value:.2f}%"}
            parts.append(element("rect", title, kind=share.kind, **at, y=0, height=14))
        start += share.value
    label = "; ".join(f"{share.label} {100 * share.value:.1f} %" for share in shares)
    return figure("stack", 14, label, parts)


def layer_strip(
    layers: int, softmax: Sequence[int], heads: Mapping[int, Sequence[int]], label: str
) -> Markup:
    """One square per layer; softmax layers are filled, and those with softmax heads at their lower edge."""
    width = 100 / layers
    parts = []
    for layer in range(layers):
        name = "softmax" if layer in softmax else "linear"
        own = f" with softmax heads {', '.join(map(str, heads[layer]))}" if layer in heads else ""
        title = element("title", f"layer {layer}: {name}{own}")
        at = {"x": f"{layer * width:.3f}%", "width": f"{width * 0.82:.3f}%"}
        parts.append(element("rect", title, kind=name, **at, y=0, height=18, rx=2))
        if own:
            parts.append(element("rect", title, kind="softmax", **at, y=12, height=6, rx=2))
    return figure("layers", 18, label, parts)
