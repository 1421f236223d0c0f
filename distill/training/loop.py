"""The loop of one stage: steps, callbacks, states at intervals, and an orderly end."""

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.checkpoint import Checkpointer
from evalsuite.distill.training.distributed import ProcessGroup, lost_process
from evalsuite.distill.training.interface import (
    Callback,
    Step,
    StepValues,
    TrainingClock,
    TrainingError,
)
from evalsuite.distill.training.stop_signals import StopSignals
from evalsuite.distill.training.train_state import TrainState
from evalsuite.distill.training.train_step import StepOutput
from evalsuite.distill.types import GlobalBatch
from evalsuite.foundation import DataError


class TrainingLoop:
    """Trains one stage, for the trainer and for layer selection.

    Args:
        train_step: the step of this process; None is returned by one that has no students.
        checkpointer: None saves no states.
        save_interval: seconds between states; 0: after every step.
        callbacks: in the order in which they are called.
    """

    def __init__(
        self,
        stage: Stage,
        train_state: TrainState,
        train_step: Callable[[GlobalBatch, int], StepOutput | None],
        process_group: ProcessGroup,
        checkpointer: Checkpointer | None,
        callbacks: Sequence[Callback],
        clock: TrainingClock,
        stop: StopSignals,
        *,
        save_interval: float,
    ) -> None:
        self._stage, self._train_state, self._train_step = stage, train_state, train_step
        self._process_group, self._checkpointer, self._callbacks = process_group, checkpointer, callbacks
        self._clock, self._stop, self._save_interval = clock, stop, save_interval
        self._pending: _PendingValues | None = None

    def run(
        self, batches: Iterator[GlobalBatch], prepare: Callable[[GlobalBatch], object] | None = None
    ) -> None:
        """Train on `batches`, to their end or until a callback is done.

        Args:
            prepare: is called with the first batch; a signal interrupts it.

        Raises:
            KeyboardInterrupt: after a signal, once the state is saved.
            DataError: the data cannot be read; the state is saved, if this process has all of it.
            TrainingError: a callback stops training, or another process of the run has ended.
        """
        try:
            self._run(batches, prepare)
        except DataError:
            # Other processes may read without errors and would not take part in saving.
            self._save_alone()
            raise
        except RuntimeError as error:
            if not lost_process(error):
                raise
            # On a GPU the step waits for the lost process, and nothing can be read any more.
            saved = self._process_group.device.type == "cpu" and self._save_alone()
            step = self._train_state.progress.step
            state = f"step {step} was saved" if saved else "the state that was saved last remains"
            raise TrainingError(
                f"stage '{self._stage.name}', step {step}: another process of this run has ended; {state}. "
                f"Repeat the command to resume ({str(error).splitlines()[0]})"
            ) from error

    def _run(self, batches: Iterator[GlobalBatch], prepare: Callable[[GlobalBatch], object] | None) -> None:
        progress, flags = self._train_state.progress, self._process_group.delayed_flags()
        last_save = time.monotonic()
        while (batch := self._next(batches, prepare)) is not None:
            prepare = None
            output = self._train_step(batch, progress.step)
            progress.add_step(self._stage.name, batch)
            first = batch.micro_batches[0]
            measured: list[dict[str, float]] = [{} for _ in self._train_state.students]
            step = Step(progress.step - 1, progress.total_tokens, output, first, measured)
            self._publish(step)
            for callback in self._callbacks:
                callback.after_step(step)
            if waiting := [callback for callback in self._callbacks if callback.waits_for(step)]:
                self._flush()
                for callback in waiting:
                    callback.settled(step)
            is_due = time.monotonic() - last_save >= self._save_interval
            stopping, is_due = flags.exchange(self._stop.requested, is_due)
            if stopping or is_due:
                self._save(last=stopping)
                last_save = time.monotonic()
            if stopping:
                self._stop.raise_interrupt()
            if any(callback.is_done for callback in self._callbacks):
                break
        flags.finish()
        self._flush()
        progress.seconds = self._clock.seconds

    def _next(
        self, batches: Iterator[GlobalBatch], prepare: Callable[[GlobalBatch], object] | None
    ) -> GlobalBatch | None:
        """The next batch, or None at the end."""
        try:
            with self._stop.interruptible():
                batch = next(batches, None)
                if prepare is not None and batch is not None:
                    with self._clock.paused():
                        prepare(batch)
                return batch
        except KeyboardInterrupt:
            self._save(last=True)
            raise

    def _publish(self, step: Step | None) -> None:
        """Begin to read the values of `step`, and pass on those of the step before it."""
        previous, self._pending = self._pending, None
        if step is not None and step.output is not None:
            self._pending = _PendingValues(step, step.output, self._stage.columns)
        if previous is None:
            return
        values = previous.read()
        try:
            for callback in self._callbacks:
                callback.on_values(values)
        except TrainingError:
            for callback in self._callbacks:
                callback.flush()
            raise

    def _flush(self) -> None:
        self._publish(None)
        for callback in self._callbacks:
            callback.flush()

    def _save(self, *, last: bool) -> None:
        """Save the state, unless the losses have become NaN or diverged; wait for the `last` one."""
        with self._stop.saving(), self._clock.paused():
            self._flush()
            self._train_state.progress.seconds = self._clock.seconds
            if self._checkpointer is not None:
                self._checkpointer.save(self._train_state)
                if last:
                    self._checkpointer.wait()

    def _save_alone(self) -> bool:
        """Save the state without the other processes, which may have ended, if this one has all of it."""
        if self._checkpointer is None or not self._train_state.is_complete:
            return False
        if not self._process_group.is_main:
            return False
        with self._stop.saving(), self._clock.paused():
            self._flush()
            self._train_state.progress.seconds = self._clock.seconds
            self._checkpointer.save(self._train_state, alone=True)
            self._checkpointer.wait(alone=True)
        return True


class _PendingValues:
    """The values of a step on their way to the host, which does not wait for the steps after it."""

    def __init__(self, step: Step, output: StepOutput, columns: Sequence[str]) -> None:
        self._step, self._lr_factor = step, output.lr_factor
        self._names = [*columns, "grad_norm", *output.group_norms]
        norms = torch.stack([output.norms, *output.group_norms.values()], 1)
        self._values: Tensor = torch.cat([output.losses, norms.to(output.losses.dtype)], 1)
        self._event: torch.cuda.Event | None = None
        if self._values.is_cuda:
            on_device = self._values
            self._values = torch.empty(on_device.shape, dtype=on_device.dtype, pin_memory=True)
            self._values.copy_(on_device, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> StepValues:
        """The values, with what callbacks have measured."""
        if self._event is not None:
            self._event.synchronize()
        rows = [
            dict(zip(self._names, row, strict=True)) | measured
            for row, measured in zip(self._values.tolist(), self._step.measured, strict=True)
        ]
        return StepValues(self._step, self._lr_factor, rows)
