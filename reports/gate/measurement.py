"""What a rule measures on a checkpoint: an estimate with its draws, or why there is none."""

from dataclasses import dataclass

from evalsuite.reports.statistics.contrasts import Contrast, ratio_interval
from evalsuite.reports.statistics.intervals import Interval


@dataclass(frozen=True, slots=True)
class Measurement:
    """A quantity with its draws, in the unit of its rule's threshold."""

    contrast: Contrast
    """The quantity, or the numerator of a ratio."""
    documents: int
    look_at: tuple[str, ...]
    """`benchmark/document`: documents on which the checkpoint is worse."""
    denominator: Contrast | None = None

    @property
    def point(self) -> float:
        """The point estimate."""
        return self.contrast.point / (1.0 if self.denominator is None else self.denominator.point)

    @property
    def unit(self) -> float:
        """How much the margin changes if the threshold changes by one."""
        return 1.0 if self.denominator is None else self.denominator.point

    def margin(self, threshold: float) -> Contrast:
        """The quantity − threshold; for a ratio, numerator − threshold · denominator, with the same sign."""
        if self.denominator is None:
            return self.contrast.shifted(-threshold)
        return self.contrast.minus(self.denominator, threshold)

    def interval(self, level: float) -> Interval:
        """The interval of the quantity."""
        if self.denominator is None:
            return self.contrast.interval(level)
        return ratio_interval(self.contrast, self.denominator, level)


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """Why a rule could not be measured."""

    why: str
