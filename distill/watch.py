"""Metrics of a run, the progress bar, and the alarm for losses that are not numbers or run away."""

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from evalsuite.distill.batches import Batch
from evalsuite.distill.recipe import Stage
from evalsuite.foundation import EvalsuiteError, append_jsonl, progress, read_jsonl, write_bytes, write_text

MOST_ROWS = 5000
"""Steps per stage that are logged; longer stages log every n-th."""
PATIENCE = 50
"""Consecutive steps far above the best loss after which training counts as diverged."""
FAR = 5.0


class TrainingError(EvalsuiteError):
    """A loss that is not a number, or that runs away. The batch is kept and no checkpoint is touched."""

    exit_code = 71


@dataclass(frozen=True, slots=True, eq=False)
class _Pending:
    """A step whose figures are still on the GPU."""

    step: int
    tokens: int
    factor: float
    losses: Tensor
    norms: Tensor
    batch: Batch


class Watch:
    """Follows one stage. Figures are read one step late, so that a GPU never waits for the log.

    Args:
        folder: the run folder; rows go to `metrics.jsonl`.
        labels: the students, in the order of the losses' rows.
        names: what the columns of the losses are, `loss` first.
        start: steps that an earlier run of this stage has done.
        seconds: training time before this stage or its resume.
    """

    def __init__(
        self,
        folder: Path,
        stage: Stage,
        labels: Sequence[str],
        names: Sequence[str],
        *,
        start: int,
        seconds: float,
        what: str,
        quiet: bool,
        main: bool,
        writer: Any = None,
    ) -> None:
        self._folder, self._stage, self._labels, self._names = folder, stage, labels, names
        self._rows: list[dict[str, Any]] = []
        self._pending: _Pending | None = None
        self._every = max(1, stage.steps // MOST_ROWS)
        self._smooth: list[float] = []
        self._best: list[float] = []
        self._above = 0
        self._main, self._writer = main, writer
        self.seconds, self._clock = seconds, time.monotonic()
        self._flushed = self._clock
        step_tokens = stage.batch * stage.length
        self._bar = progress(total=stage.steps * step_tokens, what=what, unit="tok", quiet=quiet or not main)
        self._bar.update(start * step_tokens)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.close()

    def pause(self) -> None:
        """Stop the clock (to save a state, say)."""
        self.seconds += time.monotonic() - self._clock

    def go(self) -> None:
        """Start the clock again."""
        self._clock = time.monotonic()

    def record(
        self, step: int, tokens: int, factor: float, losses: Tensor, norms: Tensor, batch: Batch
    ) -> None:
        """Take the figures of `step`, and read those of the step before.

        Args:
            tokens: trained on in the whole run, this step included.
            factor: the schedule's factor on the learning rate.
            losses: [students, columns]; norms: gradient norms [students].

        Raises:
            TrainingError: a loss of an earlier step is not finite, or the losses have run away.
        """
        previous, self._pending = self._pending, _Pending(step, tokens, factor, losses, norms, batch)
        self._bar.update(self._stage.batch * self._stage.length)
        if previous is not None:
            self._read(previous)

    def settle(self) -> None:
        """Read what is still pending and write all rows to disk. Raises TrainingError as `record` does."""
        previous, self._pending = self._pending, None
        if previous is not None:
            self._read(previous)
        self._flush()

    def _read(self, at: _Pending) -> None:
        losses, norms = at.losses.tolist(), at.norms.tolist()
        now = time.monotonic()
        for row, label, norm in zip(losses, self._labels, norms, strict=True):
            if not all(math.isfinite(value) for value in (*row, norm)):
                self._stop(at, f"{label}: the loss is {row[0]}, the gradient norm {norm}")
        self._look_out(at, [row[0] for row in losses])
        self._bar.set_postfix(
            {label: f"{row[0]:.4g}" for row, label in zip(losses, self._labels, strict=True)}, refresh=False
        )
        if at.step % self._every == 0 or at.step == self._stage.steps - 1:
            for row, label, norm in zip(losses, self._labels, norms, strict=True):
                figures = {
                    "stage": self._stage.name,
                    "step": at.step,
                    "tokens": at.tokens,
                    "student": label,
                    **dict(zip(self._names, row, strict=True)),
                    "grad_norm": norm,
                    "lr": self._stage.lr * at.factor,
                    "seconds": round(self.seconds + now - self._clock, 3),
                }
                self._rows.append(figures)
                if self._writer is not None:
                    for name in (*self._names, "grad_norm", "lr"):
                        self._writer.add_scalar(f"{label}/{name}", figures[name], at.tokens)
        if now - self._flushed > 5:
            self._flush()

    def _look_out(self, at: _Pending, losses: list[float]) -> None:
        if not self._smooth:
            self._smooth, self._best = list(losses), list(losses)
        self._smooth = [0.9 * old + 0.1 * new for old, new in zip(self._smooth, losses, strict=True)]
        self._best = [min(old, new) for old, new in zip(self._best, self._smooth, strict=True)]
        far = [new > FAR * best > 0 for new, best in zip(self._smooth, self._best, strict=True)]
        self._above = self._above + 1 if any(far) else 0
        if self._above >= PATIENCE:
            number = far.index(True)
            self._stop(
                at,
                f"{self._labels[number]}: for {PATIENCE} steps the loss has been over {FAR:g} times its best "
                f"({self._best[number]:.4g}), and is {losses[number]:.4g}",
            )

    def _stop(self, at: _Pending, what: str) -> None:
        self._flush()
        path = self._folder / "failed" / f"{self._stage.name}-{at.step}.safetensors"
        batch = at.batch
        tensors = {"inputs": batch.inputs, "labels": batch.labels}
        for name in ("kept", "positions", "cu_seqlens"):
            tensor = getattr(batch, name)
            if tensor is not None:
                tensors[name] = tensor
        write_bytes(path, save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}))
        raise TrainingError(
            f"stage '{self._stage.name}', step {at.step}: {what}. The batch is kept in {path}. Lower 'stage."
            f"{self._stage.name}.lr' (now {self._stage.lr:g}) or clip harder, and start in a new folder"
        )

    def _flush(self) -> None:
        if self._main:
            append_jsonl(self._folder / "metrics.jsonl", self._rows)
        self._rows = []
        self._flushed = time.monotonic()


def cut_metrics(folder: Path, tokens: int) -> None:
    """Drop the rows of steps that a killed run logged but whose state it never saved."""
    path = folder / "metrics.jsonl"
    rows = list(read_jsonl(path))
    kept = [row for row in rows if row["tokens"] <= tokens]
    if rows and len(kept) < len(rows):
        write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept))


def training_rows(metrics: Iterable[Mapping[str, Any]], student: str) -> list[dict[str, Any]]:
    """The loss curve of one student, to lie in its folder: what the reports draw, and no more digits.

    Args:
        metrics: rows of `metrics.jsonl`, of all students of a run.
        student: its label.

    Returns:
        Per logged step, in order: stage, tokens trained on in the whole run, loss, ce and kl where they were
        logged (six significant digits), lr (four), seconds of training.
    """
    return [
        {
            "stage": row["stage"],
            "tokens": row["tokens"],
            **{name: float(f"{row[name]:.6g}") for name in ("loss", "ce", "kl") if name in row},
            "lr": float(f"{row['lr']:.4g}"),
            "seconds": row["seconds"],
        }
        for row in metrics
        if row["student"] == student
    ]
