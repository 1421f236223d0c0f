"""Which student is closest to its teacher by each of several measures, and whether that is another's order.

A measure's values come as intervals. Two students are told apart by an interval of their difference that
takes the two as independent; they share documents, so it is a little wide.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot

import numpy as np

from evalsuite.reports.statistics.agreement import rank_agreement
from evalsuite.reports.statistics.intervals import Interval, normal_quantile

DRAWS = 2000
METHOD = "normal, taken as independent"


@dataclass(frozen=True, slots=True)
class ClosenessOrder:
    """Students in the order of one measure."""

    students: tuple[int, ...]
    """Closest first."""
    closest: tuple[int, ...]
    """Those that are not told apart from the first, itself included."""
    tau: Interval | None
    """Kendall's τ-b with the reference order over the students that it has; None for fewer than three."""
    common: int
    """Students that the reference order has."""


def difference(first: Interval, second: Interval) -> Interval:
    """Return first − second; half widths add up in squares, as for independent values."""
    point = first.point - second.point
    below = hypot(first.point - first.low, second.high - second.point)
    above = hypot(first.high - first.point, second.point - second.low)
    return Interval(point, point - below, point + above, METHOD)


def closeness_order(
    values: Mapping[int, Interval], reference: Mapping[int, float], *, higher_is_closer: bool
) -> ClosenessOrder:
    """Order students by a measure.

    Args:
        values: student → value, at least one.
        reference: student → a value that is greater where the reference order puts it first.
        higher_is_closer: False for a distance.
    """
    sign = 1.0 if higher_is_closer else -1.0
    students = sorted(values, key=lambda each: -sign * values[each].point)
    first = values[students[0]]
    closest = [students[0]]
    for student in students[1:]:
        apart = difference(first, values[student]).scaled(sign)
        closest += [student] if apart.low <= 0 else []
    common = [student for student in students if student in reference]
    return ClosenessOrder(tuple(students), tuple(closest), _tau(values, reference, common, sign), len(common))


def _tau(
    values: Mapping[int, Interval], reference: Mapping[int, float], common: list[int], sign: float
) -> Interval | None:
    """Kendall's τ-b with percentiles over normal draws of the values."""
    theirs = [reference[student] for student in common]
    point = rank_agreement([sign * values[each].point for each in common], theirs).tau if common else None
    if len(common) < 3 or point is None:
        return None
    levels = np.array([sign * values[each].point for each in common])
    spreads = np.array([values[each].width for each in common]) / (2 * normal_quantile(0.975))
    noise = np.random.default_rng(0).standard_normal((DRAWS, len(common)))
    taus = [rank_agreement(list(row), theirs).tau for row in levels + spreads * noise]
    low, high = np.quantile([each for each in taus if each is not None], (0.025, 0.975))
    return Interval(point, min(float(low), point), max(float(high), point), METHOD)
