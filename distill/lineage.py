"""Where a checkpoint comes from, written beside it as lineage.json."""

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import evalsuite
from evalsuite.distill.recipe import Recipe, Stage

SCHEMA = 2
"""2: the recipe's hash leaves out what a file does not say (see `Recipe.hash`)."""
PACKAGES = ("torch", "transformers", "flash-linear-attention", "triton", "accelerate", "tokenizers")


def versions() -> dict[str, str]:
    """Versions of what decides the numbers; packages that are not installed are left out."""
    found = {"evalsuite": evalsuite.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def lineage(
    recipe: Recipe,
    *,
    label: str,
    mixers: Sequence[str] | None,
    teacher_weights: str | None,
    tokens: dict[str, int],
    device: str,
    precision: str,
) -> dict[str, Any]:
    """The lineage of one student.

    Args:
        mixers: the mixer of each layer; None for a model trained from random weights.
        tokens: stage → tokens that this checkpoint was trained on in it; stages to come are absent.
    """
    return {
        "schema": SCHEMA,
        "label": label,
        "mixers": None if mixers is None else list(mixers),
        "teacher": None
        if recipe.teacher is None
        else {"path": recipe.teacher, "weights_id": teacher_weights},
        "recipe": {"name": recipe.name, "hash": recipe.hash, "source": recipe.source},
        "seed": recipe.seed,
        "selection": None if recipe.student.selection is None else recipe.student.selection.model_dump(),
        "stages": [_stage(stage, tokens[stage.name]) for stage in recipe.stages if stage.name in tokens],
        "tokens": sum(tokens.values()),
        "complete": all(
            tokens.get(stage.name) == stage.steps * stage.batch * stage.length for stage in recipe.stages
        ),
        "precision": precision,
        "device": device,
        "versions": versions(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _stage(stage: Stage, tokens: int) -> dict[str, Any]:
    return {
        "name": stage.name,
        "objective": stage.objective,
        "train": stage.trains,
        "tokens": tokens,
        "length": stage.length,
        "lr": stage.lr,
    }
