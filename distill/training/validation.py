"""Held-out KL and perplexity of the students during a stage."""

from collections.abc import Sequence
from math import exp

import torch

from evalsuite.distill.recipe import Recipe
from evalsuite.distill.stage import Stage
from evalsuite.distill.training.builders import TrainingModels
from evalsuite.distill.training.held_out import HeldOut, held_out_batches
from evalsuite.distill.training.train_step import StudentTrainState


class Validation:
    """Measures students on held-out sequences of a stage's data, packed and masked as in training.

    Every process measures all of them, since a sharded student runs in all processes at once.

    Args:
        recipe: has `validation`.
    """

    def __init__(self, recipe: Recipe, stage: Stage, models: TrainingModels, device: torch.device) -> None:
        assert recipe.validation is not None
        self._every, self._steps = recipe.validation.every_steps, stage.steps
        count = -(-recipe.validation.tokens // stage.seq_len)
        batches = held_out_batches(recipe, stage, models.tokenizer, count, device)
        self._held_out = HeldOut(models.teacher, batches)

    def is_due(self, step: int) -> bool:
        """Whether to measure after `step` steps."""
        return step % self._every == 0 or step == self._steps

    def measure(self, train_states: Sequence[StudentTrainState]) -> list[dict[str, float]]:
        """Per student, `validation_ppl`, and `validation_kl` in nats per token if there is a teacher."""
        return [self._measure(train_state) for train_state in train_states]

    def _measure(self, train_state: StudentTrainState) -> dict[str, float]:
        with_kl = self._held_out.teacher is not None
        with torch.no_grad():
            ce, kl = train_state.student_with_loss(lambda student: self._held_out.losses(student, kl=with_kl))
        found = {"validation_ppl": exp(ce)}
        return found | {"validation_kl": kl} if with_kl else found
