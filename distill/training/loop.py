"""The steps of one stage, for training and for layer selection.

A step is launched, and its values are read and logged while the next one runs, so that the host never waits
for the GPU. Between steps, the state is saved at intervals and a signal ends the run.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.checkpoint import Checkpointer
from evalsuite.distill.training.distributed import ProcessGroup, lost_process
from evalsuite.distill.training.stop_signals import StopSignals
from evalsuite.distill.training.train_state import TrainState
from evalsuite.distill.types import GlobalBatch, MicroBatch
from evalsuite.foundation import DataError, EvalsuiteError


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


class Step:
    """A step that was launched, whose values are on their way to the host.

    Args:
        number: steps of the stage before it.
        tokens: trained on in the whole run, including this step.
        batch: its first micro-batch, if it has any.
        columns: name → values [students], on the device; empty in a process without students.
    """

    def __init__(
        self, number: int, tokens: int, batch: MicroBatch | None, columns: Mapping[str, Tensor]
    ) -> None:
        self.number, self.tokens, self.batch = number, tokens, batch
        self.measured: list[dict[str, float]] = []
        """Further values, per student; empty if there are none."""
        self._names = list(columns)
        self._values = torch.stack([each.float() for each in columns.values()], 1) if columns else None
        self._event: torch.cuda.Event | None = None
        if self._values is not None and self._values.is_cuda:
            on_device = self._values
            self._values = torch.empty(on_device.shape, dtype=on_device.dtype, pin_memory=True)
            self._values.copy_(on_device, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def rows(self) -> list[dict[str, float]]:
        """Per student, the values and what was measured; waits for the device."""
        if self._event is not None:
            self._event.synchronize()
        values = [] if self._values is None else self._values.tolist()
        rows = [dict(zip(self._names, row, strict=True)) for row in values]
        for row, measured in zip(rows, self.measured, strict=False):
            row |= measured
        return rows


@dataclass
class StageLoop:
    """Launches the steps of one stage in a `with` block, which saves the state if the data or a process fail.

        with StageLoop(...) as loop:
            for step in loop.steps(batches):
                ...  # what is particular: validation, checkpoints, snapshots

    Raises:
        KeyboardInterrupt: after a signal, once the state is saved.
        DataError: the data cannot be read; the state is saved, if this process has all of it.
        TrainingError: raised by `log`, or another process of the run has ended.
    """

    stage: Stage
    train_state: TrainState
    train_step: Callable[[GlobalBatch, int], Mapping[str, Tensor]]
    """The step of this process: batch and number → columns of values (see `Step`)."""
    process_group: ProcessGroup
    stop: StopSignals
    checkpointer: Checkpointer | None
    """None saves no states."""
    log: Callable[[Step, Sequence[Mapping[str, float]], float], None]
    """Receives every step with its rows, once these are known, and the seconds of training. It can stop
    training by a TrainingError."""
    flush: Callable[[], None] = lambda: None
    """Is called before a state is saved, and at the end."""
    is_done: bool = False
    """Whether the stage ends with the current step, before its token budget is spent."""
    _launched: Step | None = None

    def __post_init__(self) -> None:
        self.clock = TrainingClock(self.train_state.progress.seconds)

    def steps(self, batches: Iterator[GlobalBatch]) -> Iterator[Step]:
        """Launch a step on every batch and yield it; then save the state if it is due, or stop."""
        flags = self.process_group.delayed_flags()
        batch = self._next(batches)
        if self.checkpointer is not None:
            # Models are built, data read and kernels compiled before the first batch.
            self.checkpointer.begin_interval()
        while batch is not None:
            yield self._launch(batch)
            # The end of a stage is saved by its caller.
            due = self.checkpointer is not None and self.checkpointer.is_due and not self.is_done
            stopping, due = flags.exchange(self.stop.requested, due)
            if stopping or due:
                self._save(wait=stopping)
            if stopping:
                self.stop.raise_interrupt()
            batch = None if self.is_done else self._next(batches)
        flags.finish()
        self.settle()
        self.train_state.progress.seconds = self.clock.seconds

    def _next(self, batches: Iterator[GlobalBatch]) -> GlobalBatch | None:
        try:
            with self.stop.interruptible():
                return next(batches, None)
        except KeyboardInterrupt:
            self._save(wait=True)
            raise

    def _launch(self, batch: GlobalBatch) -> Step:
        """Launch a step, then log the one before it."""
        progress = self.train_state.progress
        columns = self.train_step(batch, progress.step)
        progress.add_step(self.stage.name, batch)
        step = Step(progress.step - 1, progress.total_tokens, batch.first, columns)
        self._log_launched()
        self._launched = step
        return step

    def _log_launched(self) -> None:
        step, self._launched = self._launched, None
        if step is not None:
            try:
                self.log(step, step.rows(), self.clock.seconds)
            except TrainingError:
                self.flush()
                raise

    def settle(self) -> None:
        """Wait for the last step: all values are logged, so that its weights are known to be finite."""
        self._log_launched()
        self.flush()

    def _save(self, *, wait: bool, alone: bool = False) -> None:
        """Save the state, unless `log` stops training; `alone`: without the other processes."""
        with self.stop.saving(), self.clock.paused():
            self.settle()
            self.train_state.progress.seconds = self.clock.seconds
            if self.checkpointer is not None:
                self.checkpointer.save(self.train_state, alone=alone)
                if wait:
                    self.checkpointer.wait(alone=alone)

    def _save_alone(self) -> bool:
        """Save the state without the other processes, which may have ended, if this one has all of it."""
        saves = self.checkpointer is not None and self.process_group.is_main and self.train_state.is_complete
        if saves:
            self._save(wait=True, alone=True)
        return saves

    def __enter__(self) -> "StageLoop":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, DataError):
            # Other processes may read without errors and would not take part in saving.
            self._save_alone()
        elif isinstance(error, RuntimeError) and lost_process(error):
            # On a GPU the step waits for the lost process, and nothing can be read any more.
            saved = self.process_group.device.type == "cpu" and self._save_alone()
            step = self.train_state.progress.step
            state = f"step {step} was saved" if saved else "the state that was saved last remains"
            raise TrainingError(
                f"stage '{self.stage.name}', step {step}: another process of this run has ended; {state}. "
                f"Repeat the command to resume ({str(error).splitlines()[0]})"
            ) from error
