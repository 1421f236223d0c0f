"""Training metrics: metrics.jsonl, trackers, the progress bar, and detection of diverged losses."""

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from safetensors.torch import save
from torch import Tensor

from evalsuite.distill.stage import Stage
from evalsuite.distill.types import MicroBatch
from evalsuite.foundation import EvalsuiteError, append_jsonl, progress, read_jsonl, write_bytes, write_text
from evalsuite.foundation.tracking import Tracker

CURVES = ("loss", "ce", "kl", "validation_kl", "validation_ppl")
"""Columns of the loss curve that is stored with a student, where they are logged."""
MAX_LOGGED_STEPS = 5000
"""Logged steps per stage; longer stages log every n-th step."""
FLUSH_SECONDS = 5
DIVERGENCE_FACTOR = 5.0
"""A smoothed loss this many times above its best value counts towards divergence."""
DIVERGENCE_PATIENCE = 50
"""Consecutive steps above DIVERGENCE_FACTOR after which training is stopped."""


class GpuUsage(Protocol):
    """Metrics of the GPU (see `gpu_usage`)."""

    def measure(self, tokens: int) -> dict[str, float]:
        """Columns after `tokens` tokens of the run."""


class TrainingError(EvalsuiteError):
    """A loss that is not finite or has diverged. The batch is saved, and no checkpoint is overwritten."""

    exit_code = 71


@dataclass(frozen=True, slots=True, eq=False)
class _PendingStep:
    """A step whose losses are still on the GPU."""

    step: int
    tokens: int
    lr_factor: float
    losses: Tensor
    norms: Tensor
    batch: MicroBatch
    validation: Sequence[Mapping[str, float]] | None


class MetricsLogger:
    """Logs the metrics of one stage. Losses are read one step late, so that logging does not stall the GPU.

    Args:
        folder: the run folder; rows are appended to `metrics.jsonl`.
        labels: the students, in the order of the losses' rows.
        columns: names of the losses' columns, starting with `loss`.
        start: steps of this stage completed by an earlier process.
        seconds: training time of earlier stages and processes.
        usage: measures throughput and memory; None without a GPU.
    """

    def __init__(
        self,
        folder: Path,
        stage: Stage,
        labels: Sequence[str],
        columns: Sequence[str],
        *,
        start: int,
        seconds: float,
        title: str,
        quiet: bool,
        is_main: bool,
        tracker: Tracker | None = None,
        usage: GpuUsage | None = None,
    ) -> None:
        self._folder, self._stage, self._labels, self._columns = folder, stage, labels, columns
        self._rows: list[dict[str, Any]] = []
        self._pending: _PendingStep | None = None
        self._log_every = max(1, stage.steps // MAX_LOGGED_STEPS)
        self._smoothed: list[float] = []
        self._best: list[float] = []
        self._num_far = 0
        self._is_main, self._tracker, self._usage = is_main, tracker, usage
        self.seconds, self._resumed_at = seconds, time.monotonic()
        self._flushed_at = self._resumed_at
        total = stage.steps * stage.tokens_per_step
        self._bar = progress(total=total, what=title, unit="tok", quiet=quiet or not is_main)
        self._bar.update(start * stage.tokens_per_step)

    def __enter__(self) -> "MetricsLogger":
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.close()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context without the training clock, such as while a state is saved."""
        self.pause()
        try:
            yield
        finally:
            self._resumed_at = time.monotonic()

    def pause(self) -> None:
        """Stop the training clock."""
        self.seconds += time.monotonic() - self._resumed_at

    def record(
        self,
        step: int,
        tokens: int,
        lr_factor: float,
        losses: Tensor,
        norms: Tensor,
        batch: MicroBatch,
        validation: Sequence[Mapping[str, float]] | None = None,
    ) -> None:
        """Record `step`, and log the step before it.

        Args:
            tokens: tokens trained on in the whole run, including this step.
            lr_factor: the schedule's factor on the learning rate.
            losses: [students, columns]; norms: gradient norms [students].
            validation: per student, further measurements after this step (see `Validation`).

        Raises:
            TrainingError: a loss of an earlier step is not finite, or the losses have diverged.
        """
        previous = self._pending
        self._pending = _PendingStep(step, tokens, lr_factor, losses, norms, batch, validation)
        self._bar.update(self._stage.tokens_per_step)
        if previous is not None:
            self._log(previous)

    def flush(self) -> None:
        """Log the pending step and write all rows to disk. Raises TrainingError as `record` does."""
        previous, self._pending = self._pending, None
        if previous is not None:
            self._log(previous)
        self._write_rows()

    def _log(self, pending: _PendingStep) -> None:
        losses, norms = pending.losses.tolist(), pending.norms.tolist()
        now = time.monotonic()
        for row, label, norm in zip(losses, self._labels, norms, strict=True):
            if not all(math.isfinite(value) for value in (*row, norm)):
                self._stop(pending, f"{label}: the loss is {row[0]}, the gradient norm {norm}")
        self._check_divergence(pending, [row[0] for row in losses])
        self._bar.set_postfix(
            {label: f"{row[0]:.4g}" for row, label in zip(losses, self._labels, strict=True)}, refresh=False
        )
        due = pending.step % self._log_every == 0 or pending.step == self._stage.steps - 1
        if due or pending.validation is not None:
            measured = pending.validation or [{}] * len(self._labels)
            used = {} if self._usage is None else self._usage.measure(pending.tokens)
            for row, label, norm, held_out in zip(losses, self._labels, norms, measured, strict=True):
                metrics = {
                    "stage": self._stage.name,
                    "step": pending.step,
                    "tokens": pending.tokens,
                    "student": label,
                    **dict(zip(self._columns, row, strict=True)),
                    "grad_norm": norm,
                    "lr": self._stage.lr * pending.lr_factor,
                    "seconds": round(self.seconds + now - self._resumed_at, 3),
                    **held_out,
                    **used,
                }
                self._rows.append(metrics)
                if self._tracker is not None:
                    logged = (*self._columns, "grad_norm", "lr", *held_out, *used)
                    self._tracker.log({f"{label}/{name}": metrics[name] for name in logged}, pending.tokens)
        if now - self._flushed_at > FLUSH_SECONDS:
            self._write_rows()

    def _check_divergence(self, pending: _PendingStep, losses: list[float]) -> None:
        if not self._smoothed:
            self._smoothed, self._best = list(losses), list(losses)
        self._smoothed = [0.9 * old + 0.1 * new for old, new in zip(self._smoothed, losses, strict=True)]
        self._best = [min(old, new) for old, new in zip(self._best, self._smoothed, strict=True)]
        far = [
            new > DIVERGENCE_FACTOR * best > 0 for new, best in zip(self._smoothed, self._best, strict=True)
        ]
        self._num_far = self._num_far + 1 if any(far) else 0
        if self._num_far >= DIVERGENCE_PATIENCE:
            number = far.index(True)
            self._stop(
                pending,
                f"{self._labels[number]}: the loss has been over {DIVERGENCE_FACTOR:g} times its best value "
                f"({self._best[number]:.4g}) for {DIVERGENCE_PATIENCE} steps, and is {losses[number]:.4g}",
            )

    def _stop(self, pending: _PendingStep, reason: str) -> None:
        self._write_rows()
        name = f"{self._stage.name}-{pending.step}.safetensors"
        path = self._folder / "failed" / name
        batch = pending.batch
        tensors = {"input_ids": batch.input_ids, "labels": batch.labels}
        for field in ("loss_indices", "position_ids", "cu_seqlens"):
            tensor = getattr(batch, field)
            if tensor is not None:
                tensors[field] = tensor
        write_bytes(path, save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}))
        raise TrainingError(
            f"stage '{self._stage.name}', step {pending.step}: {reason}. The batch was saved to {path}. "
            f"Reduce 'stage.{self._stage.name}.lr' (now {self._stage.lr:g}) or 'max_grad_norm', and start a "
            "new run"
        )

    def _write_rows(self) -> None:
        if self._is_main:
            append_jsonl(self._folder / "metrics.jsonl", self._rows)
        self._rows = []
        self._flushed_at = time.monotonic()


def truncate_metrics(folder: Path, tokens: int) -> None:
    """Drop metrics of steps after the saved state, which an interrupted run logged and will repeat."""
    path = folder / "metrics.jsonl"
    rows = list(read_jsonl(path))
    remaining = [row for row in rows if row["tokens"] <= tokens]
    if rows and len(remaining) < len(rows):
        write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in remaining))


def loss_curve(metrics: Iterable[Mapping[str, Any]], student: str) -> list[dict[str, Any]]:
    """The loss curve of one student, which is stored with its checkpoint and plotted in reports.

    Args:
        metrics: rows of `metrics.jsonl`, of all students of a run.
        student: its label.

    Returns:
        Per logged step, in order: stage, tokens trained on in the whole run, loss, ce, kl and held-out KL and
        perplexity if logged (six significant digits), lr (four), and seconds of training.
    """
    return [
        {
            "stage": row["stage"],
            "tokens": row["tokens"],
            **{name: float(f"{row[name]:.6g}") for name in CURVES if name in row},
            "lr": float(f"{row['lr']:.4g}"),
            "seconds": row["seconds"],
        }
        for row in metrics
        if row["student"] == student
    ]
