"""The data of one stage of a recipe, as the trainer reads them."""

from typing import Any

from evalsuite.distill import Recipe
from evalsuite.distill.data.loader import DataSources, StageDataLoader
from evalsuite.distill.recipe.stage import Stage


def stage_data(recipe: Recipe, tokenizer: Any, stage: Stage | None = None, **options: Any) -> StageDataLoader:
    """The loader of a stage, by default the first, with sources of its own."""
    sources = DataSources(recipe.data, tokenizer, seed=recipe.seed)
    return StageDataLoader(sources, stage or recipe.stages[0], **options)
