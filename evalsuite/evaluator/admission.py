"""Checkpoints that come to a run after it was rendered, where neither suite nor data is at hand.

A student that was trained on a GPU host is asked there what its teacher is asked: their tokenizers are the
same, so the requests are there already. `requests/admitted.json` keeps what `plan.yaml` must know about it
until the run is judged.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalsuite.evaluator.curves import keep_curves, read_curve
from evalsuite.evaluator.layout import Asked, Index, write_index
from evalsuite.foundation import ConfigError, read_json, write_json


def admitted_path(run: Path) -> Path:
    """Where they are kept: weights_id → label, path, parameters, lineage."""
    return Path(run) / "requests" / "admitted.json"


def read_admitted(run: Path) -> dict[str, dict[str, Any]]:
    """Those that came later; empty if none did."""
    path = admitted_path(run)
    return dict(read_json(path)) if path.is_file() else {}


def admit(run: Path, index: Index, paths: Sequence[str], *, trust_remote_code: bool = False) -> Index:
    """Add checkpoints to what a rendered run asks, where their tokenizer is one that it was rendered for.

    The run gets the loss curves of all that are named, also of those that it asked before.

    Raises:
        ConfigError: one with another tokenizer, or whose label another checkpoint of the run has.
        CheckpointError: one that cannot be read.
        DataError: a loss curve that is not whole.
    """
    from evalsuite.evaluator.checkpoints import describe
    from evalsuite.models.checkpoints import training_file

    known = {asked.path: asked.label for asked in index.checkpoints}
    curves = {
        known[path]: read_curve(file)
        for path in paths
        if path in known and (file := training_file(Path(path).expanduser())) is not None
    }
    admitted = read_admitted(run)
    checkpoints = list(index.checkpoints)
    for path in dict.fromkeys(path for path in paths if path not in known):
        (subject,) = describe([path], None, trust_remote_code=trust_remote_code)
        label = next((each.label for each in checkpoints if each.weights_id == subject.weights_id), None)
        if subject.training is not None:
            curves[label or subject.label] = read_curve(subject.training)
        if label is not None:
            continue
        if all(asked.tokenizer != subject.tokenizer_id for asked in checkpoints):
            raise ConfigError(
                f"{path}: its tokenizer is not one that {run} was rendered for; render it there first"
            )
        if any(asked.label == subject.label for asked in checkpoints):
            raise ConfigError(
                f"{path}: the run has another checkpoint called {subject.label}; give this one's folder a "
                "name of its own"
            )
        checkpoints.append(
            Asked(
                label=subject.label,
                path=subject.path,
                weights_id=subject.weights_id,
                tokenizer=subject.tokenizer_id,
            )
        )
        admitted[subject.weights_id] = {
            "label": subject.label,
            "path": subject.path,
            "parameters": subject.parameters,
            "lineage": subject.lineage,
        }
    keep_curves(run, curves)
    if len(checkpoints) == len(index.checkpoints):
        return index
    write_json(admitted_path(run), admitted)
    index = replace(index, checkpoints=tuple(checkpoints))
    write_index(run, index)
    return index


def enter_admitted(run: Path) -> None:
    """Write those that came later into `plan.yaml`, as students."""
    from evalsuite.reports.run_folder import CheckpointPlan, read_plan, write_plan

    plan = read_plan(run)
    known = {checkpoint.weights_id for checkpoint in plan.checkpoints}
    new = tuple(
        CheckpointPlan(weights_id=weights_id, role="student", **facts)
        for weights_id, facts in read_admitted(run).items()
        if weights_id not in known
    )
    if new:
        write_plan(run, plan.model_copy(update={"checkpoints": plan.checkpoints + new}))
