"""Training metrics: metrics.jsonl, trackers, the progress bar, and use of the GPU."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.loop import Step
from evalsuite.foundation import append_jsonl, progress, read_jsonl, write_jsonl
from evalsuite.foundation.tracking import Tracker
from evalsuite.models.decoder.cost import peak_flops

METRICS = "metrics.jsonl"
CURVES = ("loss", "ce", "kl", "validation_kl", "validation_ppl")
"""Columns of the loss curve that is stored with a student, where they are logged."""
MAX_LOGGED_STEPS = 5000
"""Logged steps per stage; longer stages log every n-th step."""
FLUSH_SECONDS = 5


MIN_SECONDS = 0.1
"""Shortest time over which a throughput is measured; values of two steps may be read together."""


@dataclass
class GpuUsage:
    """Measures one stage on one GPU.

    Args:
        flops_per_token: of teacher and all students, without recomputation (see `Stage.flops_per_token`).
        world_size: GPUs that share the tokens.
        device: name of the GPU; without a stated peak (`PEAK_FLOPS`) MFU is left out.
    """

    flops_per_token: float
    world_size: int = 1
    device: str = ""
    _last: tuple[int, float] | None = field(default=None, init=False)

    def measure(self, tokens: int, now: float | None = None) -> dict[str, float]:
        """Columns of `metrics.jsonl`: `tokens_per_second`, `tflops` of one GPU and `mfu`, their share of the
        peak, since the last ones; and the process' peaks `memory_gb`, of tensors, and `reserved_gb`, of what
        it took from the GPU. Within `MIN_SECONDS` of the last ones, the memory alone.

        Args:
            tokens: tokens trained on in the whole run.
            now: seconds of a clock; default: now.
        """
        now = time.monotonic() if now is None else now
        found = {}
        if self._last is None:
            self._last = tokens, now
        elif now - self._last[1] >= MIN_SECONDS:
            rate = (tokens - self._last[0]) / (now - self._last[1])
            self._last = tokens, now
            found["tokens_per_second"] = float(f"{rate:.5g}")
            flops = rate * self.flops_per_token / self.world_size
            found["tflops"] = float(f"{flops / 1e12:.4g}")
            if (peak := peak_flops(self.device)) is not None:
                found["mfu"] = float(f"{flops / peak:.4g}")
        found["memory_gb"] = float(f"{torch.cuda.max_memory_allocated() / 1e9:.4g}")
        found["reserved_gb"] = float(f"{torch.cuda.max_memory_reserved() / 1e9:.4g}")
        return found


@dataclass(kw_only=True)
class MetricsLogger:
    """Logs the metrics of one stage; a context manager that closes the progress bar."""

    folder: Path
    """The run folder; rows are appended to `metrics.jsonl`."""
    stage: Stage
    labels: Sequence[str]
    """The students, in the order of the values' rows."""
    start: int
    """Steps of this stage completed by an earlier process."""
    title: str
    quiet: bool
    is_main: bool
    tracker: Tracker | None = None
    usage: GpuUsage | None = None
    """Measures throughput and memory; None without a GPU."""

    def __post_init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._rate: dict[str, str] = {}
        """TFLOP/s of one GPU and their share of its peak, for the progress bar."""
        self._log_every = max(1, self.stage.steps // MAX_LOGGED_STEPS)
        self._flushed_at = time.monotonic()
        total = self.stage.steps * self.stage.tokens_per_step
        self._bar = progress(total=total, what=self.title, unit="tok", quiet=self.quiet)
        self._bar.update(self.start * self.stage.tokens_per_step)

    def __enter__(self) -> "MetricsLogger":
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.close()

    def advance(self) -> None:
        """Advance the progress bar by a step."""
        self._bar.update(self.stage.tokens_per_step)

    def log(self, step: Step, rows: Sequence[Mapping[str, float]], seconds: float) -> None:
        """Log a step.

        Args:
            rows: its values, per student.
            seconds: of training, also in earlier stages and processes.
        """
        due = step.number % self._log_every == 0 or step.number == self.stage.steps - 1
        if due or any(step.measured):
            used = {} if self.usage is None else self.usage.measure(step.tokens)
            if "tflops" in used:
                share = f" ({used['mfu']:.1%})" if "mfu" in used else ""
                self._rate = {"TFLOP/s": f"{used['tflops']:.3g}{share}"}
            factor = self.stage.schedule.factor(step.number, self.stage.steps)
            rates = {"lr": self.stage.lr * factor, "seconds": round(seconds, 3)}
            for row, label in zip(rows, self.labels, strict=True):
                about = {
                    "stage": self.stage.name,
                    "step": step.number,
                    "tokens": step.tokens,
                    "student": label,
                }
                self._rows.append({**about, **row, **rates, **used})
                if self.tracker is not None:
                    logged = {**row, "lr": rates["lr"], **used}
                    self.tracker.log({f"{label}/{name}": v for name, v in logged.items()}, step.tokens)
        losses = {label: f"{row['loss']:.4g}" for row, label in zip(rows, self.labels, strict=True)}
        self._bar.set_postfix({**losses, **self._rate}, refresh=False)
        if time.monotonic() - self._flushed_at > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write all rows to disk."""
        if self.is_main:
            append_jsonl(self.folder / METRICS, self._rows)
        self._rows = []
        self._flushed_at = time.monotonic()


def truncate_metrics(folder: Path, tokens: int) -> None:
    """Drop metrics of steps after the saved state, which an interrupted run logged and will repeat."""
    path = folder / METRICS
    rows = list(read_jsonl(path))
    remaining = [row for row in rows if row["tokens"] <= tokens]
    if rows and len(remaining) < len(rows):
        write_jsonl(path, remaining)


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
