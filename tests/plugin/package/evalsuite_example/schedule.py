"""A learning-rate schedule: a decay along a power of the remaining steps."""

from typing import Literal

from pydantic import Field

from evalsuite.distill.optim.schedules import Schedule

EVALSUITE_API = 1


class Power(Schedule):
    """A decay of (1 − progress)^exponent after the warmup."""

    kind: Literal["example_power"]
    exponent: float = Field(default=2.0, gt=0)
    """Exponent of the remaining share of the steps."""

    def shape(self, progress: float) -> float:
        return float((1 - progress) ** self.exponent)
