"""Many curves become one panel a family; few stay one figure."""

import json
from collections import Counter
from math import log10
from typing import Any

from evalsuite.reports.figures.figure import SERIES_COLORS, Figure, Values
from evalsuite.reports.figures.plots import Axis, Curve, Point
from evalsuite.reports.figures.small_multiples import panels, small_multiples

FAMILIES = {"KDA": 9, "GLA": 3, "RetNet": 1, "MetaLA": 1, "": 2}
SERIES = [
    Curve(f"{family}-{number}", (Point(number + 1, 2.0), Point(10 * (number + 1), 1.0)), family)
    for family, count in FAMILIES.items()
    for number in range(count)
]


def drawn(figure: Figure) -> tuple[Any, list[str], dict[str, Any]]:
    """The grey trace, names of the others, and the layout."""
    made = json.loads(str(figure.data))
    grey, *own = made["data"]
    return grey, [trace["name"] for trace in own], made["layout"]


def test_a_panel_is_a_family_and_single_curves_share_one() -> None:
    found = panels(SERIES)
    assert [(name, len(part)) for name, part in found] == [
        ("KDA (1 of 2)", 8),
        ("KDA (2 of 2)", 1),
        ("GLA", 3),
        ("others", 4),
    ]
    assert Counter(curve.name for _, part in found for curve in part) == Counter(c.name for c in SERIES)


def test_a_panel_shows_its_own_curves_by_name_and_the_others_grey() -> None:
    figures = small_multiples(SERIES, Axis("tokens", is_log=True), Axis("loss"), title="Loss", caption="Why.")
    assert [figure.title for figure in figures] == [
        "Loss: KDA (1 of 2)",
        "Loss: KDA (2 of 2)",
        "Loss: GLA",
        "Loss: others",
    ]
    assert [bool(figure.caption) for figure in figures] == [True, False, False, False]
    assert not any(figure.is_wide for figure in figures)
    grey, names, layout = drawn(figures[2])
    assert names == ["GLA-0", "GLA-1", "GLA-2"] == list(figures[2].names)
    assert len([value for value in grey["x"] if value is None]) == len(SERIES) - 3
    assert grey["hoverinfo"] == "skip"
    low, high = layout["xaxis"]["range"]
    assert low < 0 < log10(30) < high < log10(40)
    assert "range" not in layout["yaxis"]


def test_values_are_under_the_panel_of_their_curve() -> None:
    table = Values(("model", "final"), tuple((curve.name, "1.0") for curve in SERIES))
    figures = small_multiples(SERIES, Axis("x"), Axis("y"), title="t", table=table)
    found = [[row[0] for row in figure.table.rows] for figure in figures if figure.table]
    assert found == [[curve.name for curve in part] for _, part in panels(SERIES)]


def test_curves_of_one_point_leave_the_axis_to_all_curves() -> None:
    points = [Curve(f"point-{number}", (Point(5, 1.0),), "short") for number in range(2)]
    figures = small_multiples([*SERIES, *points], Axis("x"), Axis("y"), title="t")
    (short,) = (figure for figure in figures if figure.title == "t: short")
    assert "range" not in drawn(short)[2]["xaxis"]


def test_few_curves_are_one_figure() -> None:
    (figure,) = small_multiples(SERIES[:SERIES_COLORS], Axis("tokens"), Axis("loss"), title="Loss")
    assert figure.title == "Loss"
    made = json.loads(str(figure.data))
    assert [trace["name"] for trace in made["data"]] == [curve.name for curve in SERIES[:SERIES_COLORS]]
    assert "range" not in made["layout"]["xaxis"]


def test_a_panel_without_points_is_left_out() -> None:
    empty = [Curve(f"none-{number}", (), "none") for number in range(2)]
    titles = [each.title for each in small_multiples([*SERIES, *empty], Axis("x"), Axis("y"), title="t")]
    assert "t: GLA" in titles
    assert "t: none" not in titles
