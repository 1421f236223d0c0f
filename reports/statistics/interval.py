"""An interval with its point."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt


@dataclass(frozen=True, slots=True)
class Interval:
    """A point estimate and the two ends of its confidence interval; unit as that of the point."""

    point: float
    low: float
    high: float
    method: str = ""
    """How it was made, in words that a table's caption can use."""

    @property
    def width(self) -> float:
        """`high` − `low`."""
        return self.high - self.low

    def scaled(self, factor: float) -> "Interval":
        """The interval in another unit; a negative factor turns it round."""
        ends = sorted((self.low * factor, self.high * factor))
        return Interval(self.point * factor, ends[0], ends[1], self.method)


def mean_of(intervals: Sequence[Interval]) -> Interval:
    """Interval of the mean of independent quantities, from theirs (MOVER: Zou and Donner, 2008).

    The distance from the point to each end is the root of the sum of the squared distances of the parts,
    divided by their number; lopsided parts make a lopsided mean.
    """
    n = len(intervals)
    point = sum(interval.point for interval in intervals) / n
    below = sqrt(sum((interval.point - interval.low) ** 2 for interval in intervals)) / n
    above = sqrt(sum((interval.high - interval.point) ** 2 for interval in intervals)) / n
    return Interval(point, point - below, point + above, "MOVER" if n > 1 else intervals[0].method)
