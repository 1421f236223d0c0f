"""Learning-rate schedules as a function of the share of the budget that is spent."""

import math
from typing import Literal

from pydantic import Field, model_validator

from evalsuite.foundation.strict import Strict


class Schedule(Strict):
    """A warm-up from zero, then a shape that ends at `min_ratio` of the peak."""

    kind: Literal["wsd", "linear", "cosine", "constant"] = "wsd"
    """wsd holds the peak between warm-up and decay; linear and cosine decay right after the warm-up."""
    warmup: float = Field(default=0.05, ge=0, le=1)
    """Share of the steps in which the rate rises to its peak."""
    decay: float = Field(default=0.2, ge=0, le=1)
    """wsd: share of the steps in which it falls; what warm-up and decay leave is the stable part."""
    min_ratio: float = Field(default=0.0, ge=0, le=1)
    """Rate of the last step over the peak (constant: no decay, so no use)."""

    @model_validator(mode="after")
    def _adds_up(self) -> "Schedule":
        if self.kind == "wsd" and self.warmup + self.decay > 1:
            raise ValueError(
                f"warmup ({self.warmup}) and decay ({self.decay}) add to more than 1: the decay would not end"
            )
        return self

    @property
    def falls(self) -> float:
        """Share of the steps in which the rate falls."""
        return {"wsd": self.decay, "constant": 0.0}.get(self.kind, 1 - self.warmup)

    @property
    def integral(self) -> float:
        """Mean of the rate over the budget, in units of the peak, in the limit of many steps."""
        return self.warmup / 2 + (1 - self.warmup - self.falls) + self.falls * (1 + self.min_ratio) / 2


def lr_factor(schedule: Schedule, step: int, steps: int) -> float:
    """Learning rate of `step` (from 0) out of `steps`, in units of the peak.

    The first step has a positive rate and the last one has `min_ratio` exactly, unless nothing falls.
    """
    warmup = round(schedule.warmup * steps)
    falling = round(schedule.falls * steps) if schedule.kind == "wsd" else steps - warmup
    if schedule.kind == "constant":
        falling = 0
    if step < warmup:
        return (step + 1) / warmup
    left = steps - 1 - step
    if falling == 0 or left >= falling:
        return 1.0
    # Share of the way down: 1 at the last step, so that the schedule ends where it says it ends.
    progress = 1 - left / falling
    shape = (1 + math.cos(math.pi * progress)) / 2 if schedule.kind == "cosine" else 1 - progress
    return schedule.min_ratio + (1 - schedule.min_ratio) * shape
