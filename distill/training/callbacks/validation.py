"""Held-out KL and perplexity during training."""

from collections.abc import Sequence
from math import exp

import torch

from evalsuite.distill.config import ValidationConfig
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.stage import Stage
from evalsuite.distill.training.builders import TrainingModels
from evalsuite.distill.training.callbacks.interface import Callback, Step, TrainingClock
from evalsuite.distill.training.held_out import HeldOut, held_out_batches
from evalsuite.distill.training.train_step import StudentTrainState


class Validation(Callback):
    """Measures students on held-out sequences of a stage's data, packed and masked as in training.

    Every process measures all of them, since a sharded student runs in all processes at once.
    """

    def __init__(
        self,
        config: ValidationConfig,
        recipe: Recipe,
        stage: Stage,
        models: TrainingModels,
        train_states: Sequence[StudentTrainState],
        device: torch.device,
        clock: TrainingClock,
        *,
        num_workers: int = 0,
    ) -> None:
        self._every, self._steps = config.every_steps, stage.steps
        count = -(-config.tokens // stage.seq_len)
        batches = held_out_batches(recipe, stage, models.tokenizer, count, device, num_workers=num_workers)
        self._held_out = HeldOut(models.teacher, batches)
        self._train_states, self._clock = train_states, clock

    def after_step(self, step: Step) -> None:
        """Add `validation_ppl`, and `validation_kl` in nats per token if there is a teacher."""
        done = step.number + 1
        if done % self._every == 0 or done == self._steps:
            with self._clock.paused():
                for measured, train_state in zip(step.measured, self._train_states, strict=True):
                    measured |= self._measure(train_state)

    def _measure(self, train_state: StudentTrainState) -> dict[str, float]:
        with_kl = self._held_out.teacher is not None
        with torch.no_grad():
            ce, kl = train_state.student_with_loss(lambda student: self._held_out.losses(student, kl=with_kl))
        found = {"validation_ppl": exp(ce)}
        return found | {"validation_kl": kl} if with_kl else found
