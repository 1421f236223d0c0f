"""Stops training when a loss is not finite or has diverged."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save

from evalsuite.distill.recipe.config import DivergenceConfig
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.loop import DivergedError, Step
from evalsuite.foundation import read_json, write_bytes, write_json
from evalsuite.models.checkpoints.location import FAILED

SMOOTHING = 0.9
"""Weight of the past in the smoothed loss, an exponential moving average over steps."""


@dataclass
class DivergenceStop:
    """Raises DivergedError, and saves the batch of that step."""

    folder: Path
    """The run folder."""
    stage: Stage
    labels: Sequence[str]
    config: DivergenceConfig | None
    """None stops at losses and gradients that are not finite only."""
    memory: dict[str, Any]
    """The smoothed losses and their best values by student; part of the training state, so that a resumed
    run does not take the losses it resumes with for its best ones."""

    def check(self, step: Step, rows: Sequence[Mapping[str, float]]) -> None:
        """Check the values of a step, one row per student.

        Raises:
            DivergedError: see `DivergenceStop`.
        """
        for label, row in zip(self.labels, rows, strict=True):
            if invalid := [name for name, value in row.items() if not math.isfinite(value)]:
                found = {"loss": "the loss is", "grad_norm": "the gradient norm"}
                found |= {name: name for name in invalid if name not in found}
                reason = ", ".join(f"{title} {row[name]}" for name, title in found.items())
                self._stop(step, label, reason)
        if self.config is not None:
            for label, row in zip(self.labels, rows, strict=True):
                self._check(step, label, row["loss"], self.config)

    def _check(self, step: Step, label: str, loss: float, config: DivergenceConfig) -> None:
        known = self.memory.get(label, {})
        if known.get("stage") != self.stage.name:
            known = {"stage": self.stage.name, "smoothed": loss, "best": loss, "far": 0}
        smoothed = SMOOTHING * known["smoothed"] + (1 - SMOOTHING) * loss
        best = min(known["best"], smoothed)
        limit = max(config.factor * best, config.floor)
        far = known["far"] + 1 if smoothed > limit > 0 else 0
        self.memory[label] = {"stage": self.stage.name, "smoothed": smoothed, "best": best, "far": far}
        if far >= config.patience:
            self._stop(
                step,
                label,
                f"the loss has been over {limit:.4g} for {config.patience} steps, its best value was "
                f"{best:.4g}, and it is {loss:.4g}",
            )

    def _stop(self, step: Step, label: str, reason: str) -> None:
        path = self.folder / FAILED / f"{self.stage.name}-{step.number}.safetensors"
        tensors = {
            name: tensor.cpu().contiguous()
            for name in ("input_ids", "labels", "loss_indices", "position_ids", "cu_seqlens")
            if (tensor := getattr(step.batch, name, None)) is not None
        }
        write_bytes(path, save(tensors))
        advice = (
            f"The batch was saved to {path}. Reduce 'stage.{self.stage.name}.lr' (now {self.stage.lr:g}) "
            "or 'max_grad_norm', and start a new run"
        )
        raise DivergedError(label, self.stage.name, step.number, step.tokens, reason, advice)


def record_divergence(out: Path, error: DivergedError) -> None:
    """Note in the run folder `out` that a student has diverged."""
    names = ("label", "stage", "step", "tokens", "reason")
    write_json(out / FAILED / f"{error.label}.json", {name: getattr(error, name) for name in names})


def diverged_students(out: Path) -> dict[str, dict[str, Any]]:
    """What `record_divergence` has noted in a run folder, by label."""
    return {path.stem: read_json(path) for path in sorted((out / FAILED).glob("*.json"))}
