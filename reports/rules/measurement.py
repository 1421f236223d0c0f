"""What a rule measures on a checkpoint: an estimate with its draws, or why there is none."""

from dataclasses import dataclass

from evalsuite.reports.statistics.contrasts import Contrast, ratio_interval
from evalsuite.reports.statistics.intervals import Interval

KEPT = 0.5
"""Share of the teacher's lead over chance that a student must keep for any recovery above it to count."""
ONE_RUN = "the documents of one run"


@dataclass(frozen=True, slots=True)
class Measurement:
    """A quantity with its draws, in the unit of its rule's threshold."""

    contrast: Contrast
    """The quantity, or the numerator of a ratio."""
    documents: int
    look_at: tuple[str, ...]
    """`benchmark/document`: documents on which the checkpoint is worse."""
    denominator: Contrast | None = None
    lead: Contrast | None = None
    """Of a ratio or a drop of scores, the teacher's score − chance, with paired draws: see `kept`."""
    over: str = ONE_RUN
    """What the interval is over."""
    runs: tuple[int, ...] = ()
    """Checkpoints that are averaged as training runs of one recipe; empty: the checkpoint alone."""

    @property
    def point(self) -> float:
        """The point estimate."""
        return self.contrast.point / (1.0 if self.denominator is None else self.denominator.point)

    @property
    def unit(self) -> float:
        """How much the margin changes if the threshold changes by one."""
        return 1.0 if self.denominator is None else self.denominator.point

    def margin(self, threshold: float) -> Contrast:
        """The quantity − threshold; for a ratio, numerator − threshold · denominator, with the same sign.

        If the demand on the share of the lead is the stricter one, the margin is that to it.
        """
        required, kept = self.required(threshold), self._beyond_share(threshold)
        return required if kept is None or not self._is_stricter(kept, required) else kept

    def kept(self, threshold: float) -> float | None:
        """Share of the teacher's lead that is kept, if the demand on it is stricter than the threshold."""
        kept = self._beyond_share(threshold)
        if kept is None or self.lead is None or not self._is_stricter(kept, self.required(threshold)):
            return None
        drop = (
            self.contrast.point if self.denominator is None else self.denominator.point - self.contrast.point
        )
        return 1 - drop / self.lead.point

    def required(self, threshold: float) -> Contrast:
        """The margin without the demand on the share of the lead, as for a threshold that bounds a gain."""
        if self.denominator is None:
            return self.contrast.shifted(-threshold)
        return self.contrast.minus(self.denominator, threshold)

    def _beyond_share(self, threshold: float) -> Contrast | None:
        """(student − chance) − share · (teacher − chance): guesses reach a ratio of scores, but no lead.

        The share is `KEPT`, or the threshold of a ratio where that is lower; of a drop the sign is reversed.
        """
        if self.lead is None:
            return None
        if self.denominator is None:
            return self.contrast.minus(self.lead, 1 - KEPT)
        return self.contrast.minus(self.denominator).minus(self.lead, min(threshold, KEPT) - 1)

    def _is_stricter(self, kept: Contrast, required: Contrast) -> bool:
        return kept.point > required.point if self.denominator is None else kept.point < required.point

    def interval(self, level: float) -> Interval:
        """The interval of the quantity."""
        if self.denominator is None:
            return self.contrast.interval(level)
        return ratio_interval(self.contrast, self.denominator, level)


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """Why a rule could not be measured."""

    why: str
