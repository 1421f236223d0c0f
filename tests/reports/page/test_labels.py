"""Names of points in a scatter."""

import itertools
import random

from evalsuite.reports.figures.figure import CHARACTER, LINE, RADIUS, Values, label_positions
from evalsuite.reports.figures.plots import Axis, Mark, scatter
from evalsuite.reports.statistics.intervals import Interval

ORDER = ("top center", "bottom center", "middle right", "middle left")
ENDS = ((0.0, 100.0), (0.0, 100.0))


def test_a_point_with_room_has_its_name_in_the_preferred_position() -> None:
    assert label_positions(["kda"], [(50, 50)], ENDS, (400, 300), ORDER) == ["top center"]


def test_close_points_choose_other_positions_and_crowded_ones_have_no_name() -> None:
    near = label_positions(["one", "two"], [(50, 50), (50, 53)], ENDS, (400, 300), ORDER)
    assert near == ["bottom center", "top center"]
    crowd = [(50 + dx, 50 + dy) for dx in (-2, 0, 2) for dy in (-2, 0, 2)]
    assert None in label_positions(["a-long-name"] * 9, crowd, ENDS, (400, 300), ORDER)


def test_no_name_crosses_a_line() -> None:
    assert label_positions(["kda"], [(50, 50)], ENDS, (400, 300), ORDER, 54.0) == ["bottom center"]


def test_names_at_the_edge_stay_inside() -> None:
    assert label_positions(["a-name"], [(99.5, 50)], ENDS, (400, 300), ORDER) == ["middle left"]
    assert label_positions(["a-name"], [(50, 99.5)], ENDS, (400, 300), ORDER) == ["bottom center"]


def test_no_name_covers_a_point_or_another_name() -> None:
    draw = random.Random(0)
    points = [(100 * draw.random(), 100 * draw.random()) for _ in range(80)]
    names = [f"student-{number}" for number in range(80)]
    found = label_positions(names, points, ENDS, (800, 600), ORDER)
    assert 40 < sum(each is not None for each in found) < 80
    boxes = []
    for name, (x, y), position in zip(names, points, found, strict=True):
        if position is None:
            continue
        x, y, width = 8 * x, 6 * y, CHARACTER * len(name)
        vertical, horizontal = position.split()
        left = {"left": x - RADIUS - width, "center": x - width / 2, "right": x + RADIUS}[horizontal]
        low = {"top": y + RADIUS, "middle": y - LINE / 2, "bottom": y - RADIUS - LINE}[vertical]
        boxes.append((left, left + width, low, low + LINE))
    for one, other in itertools.combinations(boxes, 2):
        assert one[0] >= other[1] or other[0] >= one[1] or one[2] >= other[3] or other[2] >= one[3]
    for x, y in points:
        assert not any(left < 8 * x < right and low < 6 * y < high for left, right, low, high in boxes)


def test_a_scatter_of_many_checkpoints_takes_the_whole_width() -> None:
    marks = [Mark(f"m{i}", Interval(i / 10, i / 10, i / 10), Interval(0.5, 0.4, 0.6), "") for i in range(9)]
    table = Values(("model",), (("m",),))
    made = [
        scatter(some, Axis("x"), Axis("y"), title="t", caption="", table=table) for some in (marks, marks[:8])
    ]
    assert [each.is_wide for each in made] == [True, False]
