"""Distillation: recipes, data, objectives, training and layer selection.

from evalsuite.distill import distill, load_recipe
folders = distill(load_recipe("pocket"), Path("students"))
"""

from typing import TYPE_CHECKING, Any

import evalsuite.distill.defects
import evalsuite.distill.objectives  # noqa: F401  (register what recipes name)
from evalsuite.distill.recipe import Recipe, known_recipes, load_recipe, write_recipe

if TYPE_CHECKING:
    from evalsuite.distill.training.estimate import Estimate, dry_run
    from evalsuite.distill.training.loop import TrainingError
    from evalsuite.distill.training.trainer import distill

__all__ = [
    "Estimate",
    "Recipe",
    "TrainingError",
    "distill",
    "dry_run",
    "known_recipes",
    "load_recipe",
    "write_recipe",
]

_LAZY = {
    "distill": "training.trainer",
    "TrainingError": "training.loop",
    "Estimate": "training.estimate",
    "dry_run": "training.estimate",
}


def __getattr__(name: str) -> Any:
    # Importing torch and transformers takes seconds and is not needed for `show recipes`.
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f"evalsuite.distill.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
