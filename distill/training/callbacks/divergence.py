"""Stops training when a loss is not finite or has diverged."""

import math
from pathlib import Path
from typing import Any

from safetensors.torch import save

from evalsuite.distill.config import DivergenceConfig
from evalsuite.distill.stage import Stage
from evalsuite.distill.training.callbacks.interface import Callback, Step, StepValues, TrainingError
from evalsuite.foundation import write_bytes

SMOOTHING = 0.9
"""Weight of the past in the smoothed loss, an exponential moving average over steps."""


class DivergenceStop(Callback):
    """Raises TrainingError, and saves the batch of that step.

    Args:
        folder: the run folder.
        config: None stops at losses and gradients that are not finite only.
        memory: the smoothed losses and their best values; part of the training state, so that a resumed run
            does not take the losses it resumes with for its best ones.
    """

    def __init__(
        self,
        folder: Path,
        stage: Stage,
        labels: list[str],
        config: DivergenceConfig | None,
        memory: dict[str, Any],
    ) -> None:
        self._folder, self._stage, self._labels = folder, stage, labels
        self._config, self._memory = config, memory

    def on_values(self, values: StepValues) -> None:
        """See `Callback`."""
        for label, row, measured in zip(self._labels, values.rows, values.step.measured, strict=True):
            if not all(math.isfinite(value) for name, value in row.items() if name not in measured):
                reason = f"{label}: the loss is {row['loss']}, the gradient norm {row['grad_norm']}"
                self._stop(values.step, reason)
        if self._config is not None:
            self._check(values.step, [row["loss"] for row in values.rows], self._config)

    def _check(self, step: Step, losses: list[float], config: DivergenceConfig) -> None:
        memory = self._memory
        if memory.get("stage") != self._stage.name:
            memory |= {"stage": self._stage.name, "smoothed": losses, "best": losses, "far": 0}
        memory["smoothed"] = smoothed = [
            SMOOTHING * old + (1 - SMOOTHING) * new
            for old, new in zip(memory["smoothed"], losses, strict=True)
        ]
        memory["best"] = best = [min(old, new) for old, new in zip(memory["best"], smoothed, strict=True)]
        far = [new > config.factor * old > 0 for new, old in zip(smoothed, best, strict=True)]
        memory["far"] = memory["far"] + 1 if any(far) else 0
        if memory["far"] >= config.patience:
            number = far.index(True)
            self._stop(
                step,
                f"{self._labels[number]}: the loss has been over {config.factor:g} times its best value "
                f"({best[number]:.4g}) for {config.patience} steps, and is {losses[number]:.4g}",
            )

    def _stop(self, step: Step, reason: str) -> None:
        path = self._folder / "failed" / f"{self._stage.name}-{step.number}.safetensors"
        tensors = {
            name: tensor.cpu().contiguous()
            for name in ("input_ids", "labels", "loss_indices", "position_ids", "cu_seqlens")
            if (tensor := getattr(step.batch, name)) is not None
        }
        write_bytes(path, save(tensors))
        raise TrainingError(
            f"stage '{self._stage.name}', step {step.number}: {reason}. The batch was saved to {path}. "
            f"Reduce 'stage.{self._stage.name}.lr' (now {self._stage.lr:g}) or 'max_grad_norm', and start a "
            "new run"
        )
