"""Learning-rate schedules of a stage, and their registry.

A schedule is one subclass of `Schedule`: its settings, and how the rate falls after the warmup.

    @SCHEDULES.register("cosine")
    class Cosine(Schedule):
        kind: Literal["cosine"]

        def shape(self, progress: float) -> float:
            return (1 + math.cos(math.pi * progress)) / 2
"""

import math
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from evalsuite.foundation.registry import Registry, subclass_of
from evalsuite.foundation.strict import StrictUnion


class Schedule(StrictUnion):
    """Linear warmup from zero, then a decay to `min_lr_ratio` of the peak rate."""

    tag: ClassVar[str] = "kind"

    kind: str = "wsd"
    """wsd holds the peak between warmup and decay; linear and cosine decay directly after the warmup;
    constant does not decay."""
    warmup_ratio: float = Field(default=0.05, ge=0, le=1)
    """Fraction of the steps spent in warmup."""
    decay_ratio: float = Field(default=0.2, ge=0, le=1)
    """wsd: fraction of the steps spent in decay; the remaining steps are the stable phase."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Rate of the last step over the peak rate (unused by `constant`)."""

    def decay_steps(self, steps: int) -> int:
        """Steps at the end of a stage in which the rate falls; the warmup takes precedence."""
        return steps

    def shape(self, progress: float) -> float:
        """The decay: from 1 at `progress` 0 to 0 at `progress` 1; linear."""
        return 1 - progress

    def factor(self, step: int, steps: int) -> float:
        """Learning rate of `step` (from 0) out of `steps`, in units of the peak rate.

        Some step has the peak rate: the last one of the warmup, or the first one without it. The last one has
        exactly `min_lr_ratio`, unless there is no decay or a single step.
        """
        warmup = round(self.warmup_ratio * steps)
        if step < warmup:
            return (step + 1) / warmup
        # The step of the peak is none of the decay, in short stages either.
        decay = min(self.decay_steps(steps), steps - max(warmup, 1))
        remaining = steps - 1 - step
        if decay == 0 or remaining >= decay:
            return 1.0
        # 1 at the last step, so that the schedule ends at its minimum exactly.
        progress = 1 - remaining / decay
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * self.shape(progress)

    @classmethod
    def registry(cls) -> Registry[Any]:
        """The schedules."""
        return SCHEDULES


SCHEDULES: Registry[type[Schedule]] = Registry(
    "schedule", group="evalsuite.schedules", validate=subclass_of(Schedule)
)
"""Name → the class of its settings."""


@SCHEDULES.register("wsd")
class WarmupStableDecay(Schedule):
    """The peak rate between warmup and a linear decay (arXiv 2404.06395)."""

    kind: Literal["wsd"] = "wsd"

    def decay_steps(self, steps: int) -> int:
        return round(self.decay_ratio * steps)

    @model_validator(mode="after")
    def _adds_up(self) -> "WarmupStableDecay":
        if self.warmup_ratio + self.decay_ratio > 1:
            raise ValueError(
                f"warmup_ratio ({self.warmup_ratio}) and decay_ratio ({self.decay_ratio}) add up to more "
                "than 1: the decay would not finish"
            )
        return self


@SCHEDULES.register("linear")
class Linear(Schedule):
    """A linear decay after the warmup."""

    kind: Literal["linear"]


@SCHEDULES.register("cosine")
class Cosine(Schedule):
    """Half a period of the cosine after the warmup."""

    kind: Literal["cosine"]

    def shape(self, progress: float) -> float:
        return (1 + math.cos(math.pi * progress)) / 2


@SCHEDULES.register("constant")
class Constant(Schedule):
    """The peak rate after the warmup."""

    kind: Literal["constant"]

    def decay_steps(self, steps: int) -> int:
        return 0
