"""Held-out KL and perplexity during training."""

from collections.abc import Sequence

import torch

from evalsuite.distill.recipe.config import ValidationConfig
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.builders import TrainingModels
from evalsuite.distill.training.callbacks.interface import Callback, Step, TrainingClock
from evalsuite.distill.training.held_out import HeldOut, HeldOutBatches, perplexity
from evalsuite.distill.training.train_step import StudentTrainState


class Validation(Callback):
    """Measures students on held-out sequences of a stage's data, packed and masked as in training.

    Every process measures all of them, since a sharded student runs in all processes at once.

    Args:
        batches: may still be being read; an error is raised after the step during which it is found.
    """

    def __init__(
        self,
        config: ValidationConfig,
        stage: Stage,
        models: TrainingModels,
        train_states: Sequence[StudentTrainState],
        device: torch.device,
        clock: TrainingClock,
        batches: HeldOutBatches,
    ) -> None:
        self._every, self._stage, self._batches = config.every_steps, stage, batches
        self._teacher, self._device = models.teacher, device
        self._train_states, self._clock = train_states, clock
        self._held_out: HeldOut | None = None

    def after_step(self, step: Step) -> None:
        """Add `validation_ppl`, and `validation_kl` in nats per token if there is a teacher."""
        done = step.number + 1
        if self._batches.is_read(self._stage):
            self._batches.get(self._stage)
        if done % self._every == 0 or done == self._stage.steps:
            with self._clock.paused():
                held_out = self._held_out = self._held_out or self._load()
                for measured, train_state in zip(step.measured, self._train_states, strict=True):
                    measured |= self._measure(held_out, train_state)

    def _load(self) -> HeldOut:
        # A sharded teacher runs in all processes at once, at a step that all of them know.
        batches = [batch.to(self._device) for batch in self._batches.get(self._stage)]
        return HeldOut(self._teacher, batches)

    def _measure(self, held_out: HeldOut, train_state: StudentTrainState) -> dict[str, float]:
        with_kl = held_out.teacher is not None
        with torch.no_grad():
            ce, kl = train_state.student_with_loss(lambda student: held_out.losses(student, kl=with_kl))
        found = {"validation_ppl": perplexity(ce)}
        return found | {"validation_kl": kl} if with_kl else found
