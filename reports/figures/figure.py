"""Figures: specifications for Plotly, drawn in the page when they scroll into view.

Colors are names of the page's style sheet (`var(--s0)`), so that a figure follows the theme. Every figure has
a table of its values for screen readers, for print and for pages without JavaScript.
"""

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup

SERIES_COLORS = 8
"""Distinct colors of series, `--s0` to `--s7`; further series repeat them with another dash and symbol."""
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon")

Box = tuple[float, float, float, float]
"""Left, right, low and high end, in pixels."""

CHARACTER, LINE = 6.5, 15.0
"""Pixels of a character and of a line of text."""
RADIUS = 6.0
"""Pixels from the centre of a point to its edge."""


@dataclass(frozen=True, slots=True)
class Values:
    """The values of a figure as text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of the page."""

    title: str
    caption: str
    data: Markup
    """Specification as JSON that is safe inside a script element."""
    height: int
    """Pixels of the plot without its legend."""
    table: Values | None
    """None where the section has a table of its own."""
    names: tuple[str, ...]
    """Entries of the legend."""
    is_wide: bool = False
    """Whether it fills a row of the page."""


def figure(
    traces: Sequence[Any],
    layout: Mapping[str, Any],
    *,
    title: str,
    table: Values | None,
    caption: str = "",
    height: int = 300,
    is_wide: bool = False,
) -> Figure:
    """Check and serialize a figure.

    Args:
        traces: Plotly traces; their texts must be escaped by `text`.
        layout: Plotly layout without fonts, colors of axes and margins, which the page sets.
        title: heading.
        table: the values; None where the section has a table of them.
        caption: one or two sentences.
        height: pixels of the plot without its legend.
        is_wide: whether it fills a row of the page.

    Raises:
        ValueError: Plotly does not know a property or refuses its value.
    """
    made = go.Figure(list(traces), dict(layout)).to_plotly_json()
    made["layout"].pop("template", None)
    legend = [
        html.unescape(trace["name"])
        for trace in made["data"]
        if trace.get("name") and trace.get("showlegend", True)
    ]
    return Figure(title, caption, script_json(rounded(made)), height, table, tuple(legend), is_wide)


def text(value: str) -> str:
    """Escape text for Plotly, which reads a subset of HTML and formulas between dollars in every text."""
    return html.escape(value, quote=False).replace("$", "&#36;")


def color(index: int) -> str:
    """Color of a series."""
    return f"var(--s{index % SERIES_COLORS})"


def rounded(value: Any, digits: int = 5) -> Any:
    """Numbers rounded to significant digits, in nested lists and mappings; not finite numbers become None."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        short = float(f"{value:.{digits}g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    if isinstance(value, Mapping):
        return {key: rounded(each, digits) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each, digits) for each in value]
    return value


def script_json(value: Any) -> Markup:
    """Compact JSON that is safe inside a script element."""
    content = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        content = content.replace(character, f"\\u{ord(character):04x}")
    return Markup(content)


def label_positions(
    names: Sequence[str],
    points: Sequence[tuple[float, float]],
    ends: tuple[tuple[float, float], tuple[float, float]],
    size: tuple[float, float],
    order: Sequence[str],
    line: float | None = None,
) -> list[str | None]:
    """Position of every name next to its point, as Plotly's `textposition`; None where there is no room.

    Names that come first choose first.

    Args:
        names: one a point.
        points: x and y, in the units of the axes.
        ends: both ends of the x axis and of the y axis.
        size: width and height of the plot in pixels.
        order: of the positions, the preferred one first.
        line: y of a horizontal line that no name crosses.
    """
    scales = [pixels / ((high - low) or 1.0) for (low, high), pixels in zip(ends, size, strict=True)]
    centres = [
        tuple((value - low) * scale for value, (low, _), scale in zip(point, ends, scales, strict=True))
        for point in points
    ]
    taken: list[Box] = [(x - RADIUS, x + RADIUS, y - RADIUS, y + RADIUS) for x, y in centres]
    if line is not None:
        height = (line - ends[1][0]) * scales[1]
        taken.append((0.0, size[0], height - 1, height + 1))
    found: list[str | None] = []
    for name, (x, y) in zip(names, centres, strict=True):
        boxes = {position: _box(name, x, y, position) for position in order}
        free = (
            position
            for position, box in boxes.items()
            if _is_within(box, size) and not any(_overlap(box, other) for other in taken)
        )
        position = next(free, None)
        if position is not None:
            taken.append(boxes[position])
        found.append(position)
    return found


def _box(name: str, x: float, y: float, position: str) -> Box:
    width = CHARACTER * len(name)
    vertical, horizontal = position.split()
    low = {"top": y + RADIUS, "middle": y - LINE / 2, "bottom": y - RADIUS - LINE}[vertical]
    left = {"left": x - RADIUS - width, "center": x - width / 2, "right": x + RADIUS}[horizontal]
    return left, left + width, low, low + LINE


def _is_within(box: Box, size: tuple[float, float]) -> bool:
    return box[0] >= 0 and box[1] <= size[0] and box[2] >= 0 and box[3] <= size[1]


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]
