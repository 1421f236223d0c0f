"""Options that every selector has: those of the context it measures in."""

from typing import Literal

from pydantic import Field

from evalsuite.foundation.strict import Strict


class ContextOptions(Strict):
    """All-linear student and held-out slice that selectors measure with."""

    all_linear: str | None = None
    """Path of an all-linear student of this teacher; by default one is distilled by the recipe."""
    all_linear_stages: Literal["all", "alignment"] = "all"
    """Stages of the recipe that train the all-linear student. KL-guided selection's code stops after
    alignment; its Algorithm 1 does not."""
    held_out: int = Field(default=32, gt=0)
    """Sequences of the held-out slice."""
    data: str | dict[str, float] | None = None
    """Source of the recipe, or mixture (source → weight), of the held-out slice and of one-swap students'
    distillation; default: that of the recipe's first stage of knowledge distillation."""
