"""Labels in a scatter."""

from evalsuite.reports.page.plots import _alone


def test_labels_that_would_overlap_are_left_to_the_hover_text() -> None:
    recovery, agreement = [50.0, 98.0, 99.0, 100.0], [60.0, 70.0, 70.5, 90.0]
    assert _alone(recovery, agreement) == [True, False, False, True]


def test_a_single_point_has_its_label() -> None:
    assert _alone([90.0], [80.0]) == [True]
