"""The data of one stage of a recipe, as the trainer reads them, and a run that is interrupted."""

from pathlib import Path
from typing import Any

import pytest

from evalsuite.distill import Recipe, distill
from evalsuite.distill.data.loader import DataSources, StageDataLoader
from evalsuite.distill.recipe.stage import Stage
from evalsuite.distill.training.train_step import TrainStep


def stage_data(recipe: Recipe, tokenizer: Any, stage: Stage | None = None, **options: Any) -> StageDataLoader:
    """The loader of a stage, by default the first, with sources of its own."""
    sources = DataSources(recipe.data, tokenizer, seed=recipe.seed)
    return StageDataLoader(sources, stage or recipe.stages[0], **options)


def interrupted(recipe: Recipe, out: Path, rank: int = 0, *, steps: int) -> None:
    """Train for so many steps of all stages, until an error ends the run."""
    begun, call = [], TrainStep.__call__

    def stop(self: TrainStep, batch: Any, step: int) -> Any:
        begun.append(step)
        if len(begun) > steps:
            raise RuntimeError("interrupted")
        return call(self, batch, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainStep, "__call__", stop)
        with pytest.raises(RuntimeError, match="interrupted"):
            distill(recipe, out, quiet=True, device="cpu")
