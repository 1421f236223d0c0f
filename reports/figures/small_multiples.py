"""Small multiples: many curves as one panel a family, each in front of all others."""

from collections.abc import Sequence
from typing import Any

from evalsuite.reports.figures.figure import SERIES_COLORS, Figure, Values
from evalsuite.reports.figures.plots import Axis, Curve, curves

OTHERS = "others"
"""Panel of the families with a single curve."""
HEIGHT = 240


def small_multiples(
    series: Sequence[Curve],
    x_axis: Axis,
    y_axis: Axis,
    *,
    title: str,
    caption: str = "",
    table: Values | None = None,
    **options: Any,
) -> list[Figure]:
    """One figure of a few curves; of more curves than there are colors, one a family.

    A panel shows all curves, those of other families faint, so that its y axis is that of every panel; its x
    axis ends with its own curves.

    Args:
        series: curves with their families.
        x_axis, y_axis, title: as of `curves`; the family is appended to the title.
        caption: under the first title.
        table: the values, if not one row per point; its rows begin with the names of curves, by which panels
            divide them.
        options: as of `curves`.
    """
    if len(series) <= SERIES_COLORS:
        return [curves(series, x_axis, y_axis, title=title, caption=caption, table=table, **options)]
    found = [(name, panel) for name, panel in panels(series) if any(curve.points for curve in panel)]
    return [
        curves(
            panel,
            x_axis,
            y_axis,
            title=f"{title}: {name}",
            caption="" if number else f"{caption} Grey: the curves of the other panels.".strip(),
            behind=[curve for curve in series if curve not in panel],
            table=_rows(table, panel),
            **{**options, "height": HEIGHT},
        )
        for number, (name, panel) in enumerate(found)
    ]


def _rows(table: Values | None, panel: Sequence[Curve]) -> Values | None:
    if table is None:
        return None
    names = {curve.name for curve in panel}
    return Values(table.columns, tuple(row for row in table.rows if row[0] in names))


def panels(series: Sequence[Curve]) -> list[tuple[str, list[Curve]]]:
    """Name and curves of each panel: families of several curves in the order of their first ones, then the
    others; none has more curves than there are colors."""
    families: dict[str, list[Curve]] = {}
    for curve in series:
        families.setdefault(curve.family, []).append(curve)
    large = {name: found for name, found in families.items() if name and len(found) > 1}
    rest = [curve for curve in series if curve.family not in large]
    found = []
    for name, members in (*large.items(), (OTHERS, rest)):
        parts = [members[i : i + SERIES_COLORS] for i in range(0, len(members), SERIES_COLORS)]
        for number, part in enumerate(parts, 1):
            alone = part[0].name if len(part) == 1 else name
            place = f"{number} of {len(parts)}"
            numbered = f"{name} ({place})" if large else place
            found.append((numbered if len(parts) > 1 else alone, part))
    return found
