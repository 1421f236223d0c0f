"""Orders by a measure of closeness: ties, Kendall's τ with a reference, differences."""

import numpy as np
import pytest

from evalsuite.reports.measures.closeness import closeness_order, difference
from evalsuite.reports.statistics.intervals import Interval


def around(point: float, half: float) -> Interval:
    return Interval(point, point - half, point + half)


def test_a_difference_has_the_spread_of_both() -> None:
    found = difference(around(0.8, 0.03), around(0.7, 0.04))
    assert (found.point, found.low, found.high) == pytest.approx((0.1, 0.05, 0.15))
    lopsided = difference(Interval(0.8, 0.77, 0.84), Interval(0.7, 0.66, 0.7))
    assert (lopsided.low, lopsided.high) == pytest.approx((0.1 - 0.03, 0.1 + np.hypot(0.04, 0.04)))


@pytest.mark.parametrize("higher", [True, False])
def test_students_that_are_not_told_apart_share_the_first_place(higher: bool) -> None:
    sign = 1 if higher else -1
    levels = {3: 0.8, 5: 0.79, 4: 0.6}
    values = {student: around(sign * level, 0.02) for student, level in levels.items()}
    order = closeness_order(values, {}, higher_is_closer=higher)
    assert (order.students, order.closest) == ((3, 5, 4), (3, 5))
    assert (order.tau, order.common) == (None, 0)


def test_tau_compares_with_the_students_that_the_reference_has() -> None:
    values = {number: around(0.9 - 0.1 * number, 0.001) for number in range(5)}
    reference = {0: 3.0, 1: 2.0, 2: 1.0, 9: 8.0}
    order = closeness_order(values, reference, higher_is_closer=True)
    assert order.common == 3
    assert (order.tau.point, order.tau.low, order.tau.high) == (1, 1, 1)
    turned = closeness_order(values, {0: 1.0, 1: 2.0, 2: 3.0}, higher_is_closer=True)
    assert turned.tau.point == -1
    distance = closeness_order(values, {0: 1.0, 1: 2.0, 2: 3.0}, higher_is_closer=False)
    assert distance.tau.point == 1


def test_wide_values_leave_tau_open() -> None:
    values = {number: around(0.5 - 0.01 * number, 0.2) for number in range(4)}
    tau = closeness_order(values, {n: float(-n) for n in range(4)}, higher_is_closer=True).tau
    assert tau.point == 1
    assert tau.low < 0
