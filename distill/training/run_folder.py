"""Run folders, and the students in them.

out/recipe.yaml                     the resolved recipe; a folder belongs to one recipe
out/metrics.jsonl                   loss curves of all students
out/state/                          the training state (see `checkpoint`)
out/checkpoints/<label>/<stage>-<tokens>/    intermediate checkpoints
out/failed/                         students that diverged (see `divergence`)
out/<label>/                        the student, with lineage.json, its model card README.md and
                                    training.jsonl (its loss curve)
"""

import shutil
from pathlib import Path
from typing import Any

from evalsuite.distill.recipe import NON_HASHED_FIELDS, Recipe, write_recipe
from evalsuite.distill.training.checkpoint import LATEST, latest_number, read_progress, state_path
from evalsuite.distill.training.metrics import METRICS
from evalsuite.foundation import ConfigError, RunFolderError, counted, is_temporary, write_json, write_text
from evalsuite.foundation.strict import parse
from evalsuite.foundation.strict_yaml import read_yaml

RECIPE = "recipe.yaml"
STATE = "state"


def init_run_dir(out: Path, recipe: Recipe) -> None:
    """Create the run folder of `recipe`, or remove what a killed run left in it. Hold the folder's lock.

    Raises:
        RunFolderError: as `check_run_dir`, or `out` cannot be written.
    """
    check_run_dir(out, recipe)
    for partial in (*out.glob(".*.partial"), *(out / "checkpoints").glob("*/.*.partial")):
        shutil.rmtree(partial, ignore_errors=True)
    if not (out / RECIPE).exists():
        write_text(out / RECIPE, write_recipe(recipe))


STARTED = {".lock", "executor", "variants"}
"""What an output folder may hold before its recipe: the lock (and a temporary file) of a run that was killed
early, an executor's files, and variants that another worker trains."""


def check_run_dir(out: Path, recipe: Recipe) -> None:
    """Check that `out` is the run folder of `recipe`, or can become it.

    Raises:
        RunFolderError: `out` belongs to another run or an earlier version, or holds unrelated files.
    """
    if (out / RECIPE).exists():
        other = saved_recipe(out)
        if other.hash != recipe.hash:
            difference = config_diff(other.model_dump(mode="json"), recipe.model_dump(mode="json"))
            raise RunFolderError(
                f"{out} holds another run (of recipe '{other.name}'; differs in {difference}); "
                "choose a new folder"
            )
        return
    if out.exists() and any(each.name not in STARTED and not is_temporary(each) for each in out.iterdir()):
        raise RunFolderError(f"{out} is not empty and is not the run folder of a recipe; choose a new folder")


def saved_recipe(out: Path) -> Recipe:
    """The recipe of a run folder.

    Raises:
        RunFolderError: it was written by an earlier version.
    """
    path = out / RECIPE
    saved = read_yaml(path)
    try:
        return parse(saved, Recipe, str(path))
    except ConfigError as error:
        raise RunFolderError(
            f"{out} holds a run of an earlier version of evalsuite; choose a new folder ({error})"
        ) from None


def branch_run(source: Path, out: Path, recipe: Recipe) -> None:
    """Begin the run of `recipe` in `out` with the last state of the run in `source`, and with its metrics.

    Several last stages can so be compared without training the stages before them again. A branch equals a
    run of its recipe from the start: it has the same weights, optimizer states, random numbers and positions
    in the data. Does nothing if `out` has a state already. Hold the lock of `out`.

    Raises:
        RunFolderError: as `state_to_branch_from`, or the state cannot be copied.
        CheckpointError: the state is damaged or has another schema.
    """
    if latest_number(out / STATE):
        return
    state = state_to_branch_from(source, recipe)
    try:
        shutil.copytree(state, out / STATE / state.name, dirs_exist_ok=True)
        if (source / METRICS).exists():
            shutil.copyfile(source / METRICS, out / METRICS)
    except (OSError, shutil.Error) as error:
        raise RunFolderError(
            f"{state}: cannot be copied to {out}; a run in training replaces its states: repeat the command "
            f"({error})"
        ) from error
    write_json(out / STATE / LATEST, {"number": int(state.name)})


def state_to_branch_from(source: Path, recipe: Recipe) -> Path:
    """The folder of the last state of the run in `source`.

    Raises:
        RunFolderError: `source` has no state, or has begun stages that differ from the recipe's.
        CheckpointError: the state is damaged or has another schema.
    """
    number = latest_number(source / STATE) if (source / RECIPE).exists() else 0
    if number == 0:
        raise RunFolderError(f"{source}: there is no training state of a run to branch from")
    state = state_path(source / STATE, number)
    progress = read_progress(state)
    _check_same_start(source, recipe, progress.stage + (progress.step > 0))
    return state


def _check_same_start(source: Path, recipe: Recipe, begun: int) -> None:
    """Check that the first `begun` stages, and all that is not a stage, are the recipe's.

    Raises:
        RunFolderError: they differ, or the recipe has fewer stages.
    """
    other = saved_recipe(source)
    if begun > len(recipe.stages):
        raise RunFolderError(
            f"{source}: has begun stage '{other.stages[begun - 1].name}', and recipe '{recipe.name}' has "
            f"{counted(len(recipe.stages), 'stage')}"
        )
    start = recipe.model_copy(update={"stages": recipe.stages[:begun]})
    other = other.model_copy(update={"stages": other.stages[:begun], "name": recipe.name})
    if other.hash != start.hash:
        difference = config_diff(other.model_dump(mode="json"), start.model_dump(mode="json"))
        raise RunFolderError(
            f"{source}: its run differs from recipe '{recipe.name}' in {difference}; a branch can differ in "
            "stages that have not begun"
        )


def config_diff(old: Any, new: Any, prefix: str = "") -> str:
    """The first keys in which two plain configurations differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        parts = [
            config_diff(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else str(key))
            for key in (*new, *(key for key in old if key not in new))
            if old.get(key) != new.get(key) and not (not prefix and key in NON_HASHED_FIELDS)
        ]
        return ", ".join(parts[:3]) + (" …" if len(parts) > 3 else "")
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        parts = [
            config_diff(a, b, f"{prefix}.{i}")
            for i, (a, b) in enumerate(zip(old, new, strict=True))
            if a != b
        ]
        return ", ".join(parts[:3])
    return prefix
