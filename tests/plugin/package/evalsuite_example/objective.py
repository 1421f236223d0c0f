"""An objective: KL to the teacher and cross-entropy, mixed by one share."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from evalsuite.distill.objectives.end_to_end import EndToEndStage

if TYPE_CHECKING:
    from torch import Tensor

    from evalsuite.distill.objectives.kl_and_cross_entropy import LossTokens

EVALSUITE_API = 1


class Distillation(EndToEndStage):
    """(1 − s) · KL(teacher ‖ student) + s · CE per token, with the share s."""

    columns: ClassVar[tuple[str, ...]] = ("loss", "ce", "kl")

    objective: Literal["example_distillation"]
    ce_share: float = Field(default=0.5, ge=0, lt=1)
    """Share s of the cross-entropy."""

    @property
    def runs_teacher(self) -> bool:
        """True: the KL always has a weight."""
        return True

    def loss_columns(self, tokens: "LossTokens") -> "Sequence[Tensor]":
        """Loss, CE and KL."""
        from evalsuite.distill.recipe.config import LossConfig

        return tokens.distillation(LossConfig(ce=self.ce_share, kl=1 - self.ce_share))
