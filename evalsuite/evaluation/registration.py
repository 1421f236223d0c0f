"""Registration of checkpoints with a run whose requests are already built.

A GPU host can evaluate a student that was trained there without suite or data: if its tokenizer is that of
another checkpoint of the run, its requests exist. `requests/registered.json` holds the entries for
`plan.yaml` until the score phase adds them, and `requests/diverged.json` those of students that diverged.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalsuite.evaluation.checkpoints import diverged_students
from evalsuite.evaluation.loss_curves import read_curve, write_curves
from evalsuite.evaluation.run_paths import CheckpointRef, Index, read_index, write_index
from evalsuite.foundation import ConfigError, read_json, write_json


def registered_path(run: Path) -> Path:
    """Return the path of the registered checkpoints: weights_id → label, path, parameters, and so on."""
    return Path(run) / "requests" / "registered.json"


def read_registered(run: Path) -> dict[str, dict[str, Any]]:
    """Read the registered checkpoints; empty if there are none."""
    path = registered_path(run)
    return dict(read_json(path)) if path.is_file() else {}


def diverged_path(run: Path) -> Path:
    """Return the path of the notes on diverged students: path → what `distill` has noted."""
    return Path(run) / "requests" / "diverged.json"


def read_diverged(run: Path) -> dict[str, dict[str, Any]]:
    """Read the notes on diverged students; empty if there are none."""
    path = diverged_path(run)
    return dict(read_json(path)) if path.is_file() else {}


def register_diverged(run: Path, paths: Sequence[str]) -> None:
    """Add the notes on students below `paths` that diverged in training. Raises as `diverged_students`."""
    if found := {each.path: each.model_dump() for each in diverged_students(paths)}:
        write_json(diverged_path(run), read_diverged(run) | found)


def register_checkpoints(
    run: Path, index: Index, paths: Sequence[str], *, trust_remote_code: bool = False
) -> Index:
    """Add checkpoints to a run whose requests exist for their tokenizer.

    Loss curves are copied into the run for all paths, known checkpoints included.

    Raises:
        ConfigError: another tokenizer, or positions that do not reach the run's `max_length`.
        CheckpointError: a checkpoint that cannot be read.
        DataError: an incomplete loss curve.
    """
    from evalsuite.evaluation.checkpoints import (
        CheckpointRegistry,
        check_max_length,
        describe_checkpoints,
    )
    from evalsuite.models.checkpoints.load import training_file

    known = {ref.path: ref.label for ref in index.checkpoints}
    curves = {
        known[path]: read_curve(file)
        for path in paths
        if path in known and (file := training_file(Path(path).expanduser())) is not None
    }
    registered = read_registered(run)
    checkpoints = list(index.checkpoints)
    registry, max_length = CheckpointRegistry(checkpoints), index.config.get("max_length")
    for path in dict.fromkeys(path for path in paths if path not in known):
        (checkpoint,) = describe_checkpoints([path], None, trust_remote_code=trust_remote_code)
        is_known = checkpoint.weights_id in registry.labels
        label = registry.add(checkpoint)
        if checkpoint.training is not None:
            curves[label] = read_curve(checkpoint.training)
        if is_known:
            continue
        if all(ref.tokenizer != checkpoint.tokenizer_id for ref in checkpoints):
            raise ConfigError(
                f"{path}: {run} has no requests for its tokenizer; build them first with --build-only"
            )
        if max_length is not None:
            check_max_length([checkpoint], max_length)
        checkpoints.append(
            CheckpointRef(
                label=label,
                path=checkpoint.path,
                weights_id=checkpoint.weights_id,
                tokenizer=checkpoint.tokenizer_id,
                positions=checkpoint.max_length,
            )
        )
        registered[checkpoint.weights_id] = {
            "label": label,
            "path": checkpoint.path,
            "parameters": checkpoint.parameters,
            "positions": checkpoint.max_length,
            "lineage": checkpoint.lineage,
        }
    write_curves(run, curves)
    if len(checkpoints) == len(index.checkpoints):
        return index
    write_json(registered_path(run), registered)
    index = replace(index, checkpoints=tuple(checkpoints))
    write_index(run, index)
    return index


def add_registered_to_plan(run: Path) -> None:
    """Write the registered checkpoints into `plan.yaml`, as students, and those that diverged."""
    from evalsuite.reports.records.run_folder import (
        CheckpointPlan,
        DivergedStudent,
        read_plan,
        still_diverged,
        write_plan,
    )

    plan, labels = read_plan(run), read_index(run).labels
    known = {checkpoint.weights_id for checkpoint in plan.checkpoints}
    new = tuple(
        # A shard's label may differ from the one that these weights have here.
        CheckpointPlan(weights_id=weights_id, role="student", **facts | {"label": labels[weights_id]})
        for weights_id, facts in read_registered(run).items()
        if weights_id not in known
    )
    checkpoints = plan.checkpoints + new
    notes = (*plan.diverged, *(DivergedStudent(**note) for note in read_diverged(run).values()))
    diverged = still_diverged(notes, checkpoints)
    changed = {"checkpoints": checkpoints, "diverged": diverged}
    if changed != {"checkpoints": plan.checkpoints, "diverged": plan.diverged}:
        write_plan(run, plan.model_copy(update=changed))
