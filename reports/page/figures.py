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


@dataclass(frozen=True, slots=True)
class Table:
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
    table: Table | None
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
    table: Table | None,
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
