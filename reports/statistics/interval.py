"""An interval with its point."""

from dataclasses import dataclass


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
