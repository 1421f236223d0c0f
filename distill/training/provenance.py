"""Lineage of a checkpoint, stored with it as lineage.json."""

import platform
from datetime import UTC, datetime
from typing import Any

import evalsuite
from evalsuite.distill.data.mixture import distinct_tokens, documents_without_loss
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.training.builders import TrainingModels
from evalsuite.distill.training.train_state import Progress
from evalsuite.foundation.dependencies import installed_versions
from evalsuite.models.mixers import MIXERS

SCHEMA = 7
"""2: recipe hashes leave out defaults. 3: stages have `trainable` and `seq_len`. 4: ancestors and distinct
tokens. 5: distinct tokens leave out second copies of chunks. 6: windows.
7: titles of mixers."""
PACKAGES = ("torch", "transformers", "flash-linear-attention", "triton", "accelerate", "tokenizers")


def package_versions() -> dict[str, str]:
    """Versions of the packages that affect results; packages that are not installed are left out."""
    found = {"evalsuite": evalsuite.__version__, "python": platform.python_version()}
    return found | installed_versions(PACKAGES)


def build_lineage(
    recipe: Recipe, label: str, models: TrainingModels, progress: Progress, device: str
) -> dict[str, Any]:
    """The lineage of one student as it is now.

    Stages that have not started are absent. `mixers`, one per layer, is None for a model trained from random
    weights; `windows` are those of sliding windows and next to recurrences, in tokens. `softmax_heads`, the
    heads that stay softmax in recurrent layers, is there if there are any. `distinct_tokens`
    leaves out those that were read before (see `distinct_tokens`); `data_revisions` are the commits of hub
    datasets that were read.
    """
    config, tokens, sources = models.students[label].config, progress.tokens, progress.current_sources
    is_transformer = getattr(config, "is_teacher", True)
    mixers = None if is_transformer else list(config.mixers)
    ancestors, selection = models.ancestors[label], recipe.student.of(label).selection
    return {
        "schema": SCHEMA,
        "label": label,
        "mixers": mixers,
        "mixer_titles": {name: MIXERS[name].display_name for name in sorted(set(mixers or ()))},
        "windows": {} if is_transformer else dict(config.windows),
        **({"softmax_heads": config.softmax_heads} if getattr(config, "softmax_heads", {}) else {}),
        "teacher": models.teacher_lineage,
        "ancestors": ancestors,
        "recipe": {"name": recipe.name_of(label), "hash": recipe.hash, "source": recipe.source},
        "seed": recipe.seed,
        "selection": None if selection is None else selection.model_dump(),
        "stages": [
            {
                "name": stage.name,
                "objective": stage.objective,
                "trainable": stage.trainable_set,
                "tokens": tokens[stage.name],
                "seq_len": stage.seq_len,
                "lr": stage.lr,
                **({"teacher_store": progress.stores[stage.name]} if stage.name in progress.stores else {}),
            }
            for stage in recipe.stages
            if stage.name in tokens
        ],
        "data_revisions": {
            name: state["position"]["revision"]
            for name, state in sources.items()
            if "revision" in state["position"]
        },
        "documents_without_loss": documents_without_loss(sources),
        "tokens": progress.total_tokens,
        "distinct_tokens": distinct_tokens(sources),
        "total_tokens": progress.total_tokens + sum(each.get("tokens", 0) for each in ancestors),
        "complete": all(
            tokens.get(stage.name) == stage.steps * stage.tokens_per_step for stage in recipe.stages
        ),
        "precision": models.precision,
        "device": device,
        "versions": package_versions(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
    }
