"""The interface between the training loop and what observes it."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from evalsuite.distill.training.train_step import StepOutput
from evalsuite.distill.types import MicroBatch
from evalsuite.foundation import EvalsuiteError


class TrainingError(EvalsuiteError):
    """Training cannot go on: a loss that is not finite or has diverged, no memory, or a lost process."""

    exit_code = 71


class DivergedError(TrainingError):
    """A student's loss is not finite or has diverged.

    Args:
        tokens: that the run had trained on.
        reason: what the loss did.
        advice: where the batch is, and what to change.
    """

    def __init__(self, label: str, stage: str, step: int, tokens: int, reason: str, advice: str) -> None:
        super().__init__(f"stage '{stage}', step {step}: {label}: {reason}. {advice}")
        self.label, self.stage, self.step, self.tokens, self.reason = label, stage, step, tokens, reason


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A step that was launched, whose values are still on the device.

    number: steps of the stage before it. tokens: trained on in the whole run, including this step.
    output: None in a process without students. batch: the first micro-batch. measured: per student, further
    values that callbacks add.
    """

    number: int
    tokens: int
    output: StepOutput | None
    batch: MicroBatch
    measured: list[dict[str, float]]


@dataclass(frozen=True, slots=True, eq=False)
class StepValues:
    """The values of a step. rows: per student, losses by column, gradient norms, and what was measured.

    lr_factor: the schedule's factor on the learning rate.
    """

    step: Step
    lr_factor: float
    rows: Sequence[Mapping[str, float]]


class Callback:
    """Observes the steps of one stage, in all processes; by default, it does nothing."""

    is_done = False
    """Whether the stage can end before its token budget is spent."""

    def after_step(self, step: Step) -> None:
        """A step was launched. Its values are not to be read here: the host would wait for the GPU."""

    def on_values(self, values: StepValues) -> None:
        """The values of a step are known, one step later, or earlier where the loop waits for them."""

    def waits_for(self, step: Step) -> bool:
        """Whether `settled` is to be called for this step."""
        return False

    def settled(self, step: Step) -> None:
        """A step that this callback waits for has ended: its values are known to all callbacks, none of which
        has stopped training, and no later step has changed the weights."""

    def flush(self) -> None:
        """A state is about to be saved, or the stage has ended."""


class TrainingClock:
    """Seconds of training, without those in which it is paused."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._resumed_at: float | None = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds up to now."""
        running = 0.0 if self._resumed_at is None else time.monotonic() - self._resumed_at
        return self._seconds + running

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context that does not count, such as while a state is saved."""
        self._seconds, self._resumed_at = self.seconds, None
        try:
            yield
        finally:
            self._resumed_at = time.monotonic()
