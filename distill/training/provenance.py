"""Lineage of a checkpoint, stored with it as lineage.json."""

import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import evalsuite
from evalsuite.distill.data.mixture import documents_without_loss
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.recipe.stage import Stage
from evalsuite.models.mixers import MIXERS

SCHEMA = 7
"""2: recipe hashes leave out defaults. 3: stages have `trainable` and `seq_len`. 4: ancestors and distinct
tokens. 5: distinct tokens leave out second copies of chunks. 6: windows.
7: titles of mixers."""
SUMMARY = (
    "label", "mixers", "teacher", "recipe", "seed", "selection", "stages", "tokens", "distinct_tokens",
    "complete",
)  # fmt: skip
"""Fields of an ancestor's lineage that its descendants repeat."""
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


def chain(path: str, weights_id: str, lineage: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The checkpoints that a checkpoint comes from, oldest first, and itself as the last one."""
    summary = {key: lineage[key] for key in SUMMARY if key in lineage}
    return [*lineage.get("ancestors", []), {"path": path, "weights_id": weights_id, **summary}]


def build_lineage(
    recipe: Recipe,
    *,
    label: str,
    mixers: Sequence[str] | None,
    windows: Mapping[str, int],
    teacher_weights_id: str | None,
    teacher_revision: str | None,
    teacher_ancestors: Sequence[dict[str, Any]],
    ancestors: Sequence[dict[str, Any]],
    tokens: dict[str, int],
    distinct: int,
    sources: Mapping[str, Mapping[str, Any]],
    device: str,
    precision: str,
) -> dict[str, Any]:
    """The lineage of one student.

    Args:
        mixers: the mixer of each layer; None for a model trained from random weights.
        windows: mixer → its window in tokens, that of a sliding window or next to a recurrence.
        teacher_ancestors: the teacher's `chain` if it was distilled itself.
        ancestors: `chain` of the checkpoint that training started from.
        tokens: stage → tokens this checkpoint was trained on; stages that have not started are absent.
        distinct: these tokens without those that were read before, see `distinct_tokens`.
        sources: data source → its state: of a hub dataset the commit that was read, and documents without
            any token in the loss.
    """
    total = sum(tokens.values())
    selection = recipe.student.of(label).selection
    return {
        "schema": SCHEMA,
        "label": label,
        "mixers": None if mixers is None else list(mixers),
        "mixer_titles": {name: MIXERS[name].display_name for name in sorted(set(mixers or ()))},
        "windows": dict(windows),
        "teacher": None
        if recipe.teacher is None
        else {
            "path": recipe.teacher,
            "weights_id": teacher_weights_id,
            "revision": teacher_revision,
            "ancestors": list(teacher_ancestors),
        },
        "ancestors": list(ancestors),
        "recipe": {"name": recipe.name_of(label), "hash": recipe.hash, "source": recipe.source},
        "seed": recipe.seed,
        "selection": None if selection is None else selection.model_dump(),
        "stages": [_stage(stage, tokens[stage.name]) for stage in recipe.stages if stage.name in tokens],
        "data_revisions": {
            name: state["position"]["revision"]
            for name, state in sources.items()
            if "revision" in state["position"]
        },
        "documents_without_loss": documents_without_loss(sources),
        "tokens": total,
        "distinct_tokens": distinct,
        "total_tokens": total + sum(each.get("tokens", 0) for each in ancestors),
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
