"""How a student is made: recipes, stages, objectives, data and the trainer.

from evalsuite.distill import distill, load_recipe
folders = distill(load_recipe("pocket"), Path("students"))
"""

from typing import TYPE_CHECKING, Any

from evalsuite.distill.recipe import Recipe, known_recipes, load_recipe, write_recipe

if TYPE_CHECKING:
    from evalsuite.distill.estimate import Estimate, dry_run
    from evalsuite.distill.trainer import distill
    from evalsuite.distill.watch import TrainingError

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

_HOMES = {"distill": "trainer", "TrainingError": "watch", "Estimate": "estimate", "dry_run": "estimate"}


def __getattr__(name: str) -> Any:
    # Torch and transformers take seconds to import, and `show recipes` does not need them.
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"evalsuite.distill.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
