"""Lineage of a checkpoint, stored with it as lineage.json."""

import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import evalsuite
from evalsuite.distill.recipe import Recipe, Stage

SCHEMA = 3
"""2: recipe hashes leave out defaults. 3: stages have `trainable` and `seq_len`."""
PACKAGES = ("torch", "transformers", "flash-linear-attention", "triton", "accelerate", "tokenizers")


def package_versions() -> dict[str, str]:
    """Versions of the packages that affect results; packages that are not installed are left out."""
    found = {"evalsuite": evalsuite.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def build_lineage(
    recipe: Recipe,
    *,
    label: str,
    mixers: Sequence[str] | None,
    teacher_weights_id: str | None,
    tokens: dict[str, int],
    device: str,
    precision: str,
) -> dict[str, Any]:
    """The lineage of one student.

    Args:
        mixers: the mixer of each layer; None for a model trained from random weights.
        tokens: stage → tokens this checkpoint was trained on; stages that have not started are absent.
    """
    return {
        "schema": SCHEMA,
        "label": label,
        "mixers": None if mixers is None else list(mixers),
        "teacher": None
        if recipe.teacher is None
        else {"path": recipe.teacher, "weights_id": teacher_weights_id},
        "recipe": {"name": recipe.name, "hash": recipe.hash, "source": recipe.source},
        "seed": recipe.seed,
        "selection": None if recipe.student.selection is None else recipe.student.selection.model_dump(),
        "stages": [_stage(stage, tokens[stage.name]) for stage in recipe.stages if stage.name in tokens],
        "tokens": sum(tokens.values()),
        "complete": all(
            tokens.get(stage.name) == stage.steps * stage.tokens_per_step for stage in recipe.stages
        ),
        "precision": precision,
        "device": device,
        "versions": package_versions(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _stage(stage: Stage, tokens: int) -> dict[str, Any]:
    return {
        "name": stage.name,
        "objective": stage.objective,
        "trainable": stage.trainable_set,
        "tokens": tokens,
        "seq_len": stage.seq_len,
        "lr": stage.lr,
    }
