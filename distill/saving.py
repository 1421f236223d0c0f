"""Run folders: training states from which a killed run goes on, and checkpoints that others load.

out/recipe.yaml                     the resolved recipe; a folder belongs to one recipe
out/metrics.jsonl                   loss curves of all students
out/state/<number>/                 tensors.safetensors and state.json; latest.json names the whole one
out/checkpoints/<label>/<stage>-<tokens>/    along the way
out/<label>/                        the student; with lineage.json, and training.jsonl: its own loss curve
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from evalsuite.distill.language_model import LanguageModel
from evalsuite.distill.parallel import cut_like, whole
from evalsuite.distill.recipe import UNDECISIVE, Recipe, write_recipe
from evalsuite.foundation import (
    CheckpointError,
    RunFolderError,
    read_json,
    write_json,
    write_text,
)
from evalsuite.foundation.strict import parse, read_yaml
from evalsuite.models.checkpoints import TRAINING, without_progress_bars

STATE_SCHEMA = 1


@dataclass
class Progress:
    """Where a run stands. `tokens` counts per stage; `data` is the stage's `StepData.state`."""

    stage: int = 0
    step: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    data: dict[str, Any] | None = None
    seconds: float = 0.0

    @property
    def total(self) -> int:
        """Tokens trained on so far, over all stages."""
        return sum(self.tokens.values())


def claim(out: Path, recipe: Recipe) -> None:
    """Make `out` the folder of `recipe`.

    Raises:
        RunFolderError: it holds another run, or files that are no run's.
    """
    path = out / "recipe.yaml"
    if path.exists():
        found = read_yaml(path)
        old = parse(found, Recipe, str(path))
        if old.hash != recipe.hash:
            different = _difference(found, recipe.model_dump(mode="json"))
            raise RunFolderError(
                f"{out} holds another run (of recipe '{old.name}'; differs in {different}); "
                "choose a new folder"
            )
        return
    if out.exists() and any(entry.name != ".lock" for entry in out.iterdir()):
        raise RunFolderError(f"{out} is not empty and holds no run of a recipe; choose a new folder")
    write_text(path, write_recipe(recipe))


def _difference(old: Any, new: Any, where: str = "") -> str:
    """The first places where two plain values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        parts = [
            _difference(old.get(key), new.get(key), f"{where}.{key}" if where else str(key))
            for key in (*new, *(key for key in old if key not in new))
            if old.get(key) != new.get(key) and not (not where and key in UNDECISIVE)
        ]
        return ", ".join(parts[:3]) + (" …" if len(parts) > 3 else "")
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        parts = [
            _difference(a, b, f"{where}.{i}") for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b
        ]
        return ", ".join(parts[:3])
    return where


def save_state(
    out: Path,
    at: Progress,
    weights: Mapping[str, Mapping[str, Tensor]],
    moments: Mapping[str, Mapping[str, Tensor]],
    *,
    main: bool = True,
) -> None:
    """Write all that a resume needs; the state before stays whole until this one is.

    Args:
        weights: label of each student → its master weights by name.
        moments: label → what its optimizers keep, by `<parameter>/<name>`.
        main: False in processes that only help to put sharded tensors together.

    Raises:
        RunFolderError: the disk is full or the folder cannot be written.
    """
    tensors: dict[str, Tensor] = {"random": torch.get_rng_state()}
    for part, given in (("model", weights), ("optimizer", moments)):
        for label, named in given.items():
            for name, tensor in named.items():
                together = whole(tensor)
                if main:
                    tensors[f"{label}/{part}/{name}"] = together.cpu().contiguous()
    if not main:
        return
    folder = out / "state"
    number = _latest(folder) + 1
    target = folder / f"{number:06d}"
    try:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        save_file(tensors, target / "tensors.safetensors")
        _sync(target / "tensors.safetensors")
    except (OSError, RuntimeError) as error:
        shutil.rmtree(target, ignore_errors=True)
        raise RunFolderError(f"{target}: the training state cannot be written ({error})") from error
    write_json(target / "state.json", {"schema": STATE_SCHEMA, **asdict(at)})
    write_json(folder / "latest.json", {"number": number})
    for old in folder.iterdir():
        if old.is_dir() and old != target:
            shutil.rmtree(old, ignore_errors=True)


def load_state(out: Path) -> tuple[Progress, dict[str, Tensor]] | None:
    """The last whole state, or None where there is none.

    Raises:
        CheckpointError: it is damaged or of another schema.
    """
    folder = out / "state"
    number = _latest(folder)
    if number == 0:
        return None
    target = folder / f"{number:06d}"
    value = read_json(target / "state.json")
    if value.pop("schema", None) != STATE_SCHEMA:
        raise CheckpointError(
            f"{target}: a training state of another version of evalsuite; start in a new folder"
        )
    try:
        tensors = load_file(target / "tensors.safetensors")
    except Exception as error:  # safetensors raises an exception class of its own for a torn file
        raise CheckpointError(f"{target}: the training state is damaged ({error})") from error
    return Progress(**value), tensors


def _latest(folder: Path) -> int:
    path = folder / "latest.json"
    return int(json.loads(path.read_text())["number"]) if path.exists() else 0


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def restore_weights(weights: Mapping[str, nn.Parameter], label: str, tensors: Mapping[str, Tensor]) -> None:
    """Copy a student's master weights back from a saved state."""
    prefix = f"{label}/model/"
    with torch.no_grad():
        for name, parameter in weights.items():
            if prefix + name not in tensors:
                raise CheckpointError(
                    f"the training state holds no '{name}' of {label}; start in a new folder"
                )
            parameter.copy_(tensors[prefix + name])


def restore_optimizers(
    weights: Mapping[str, nn.Parameter],
    label: str,
    optimizers: Sequence[torch.optim.Optimizer],
    tensors: Mapping[str, Tensor],
) -> None:
    """Copy the moments of a student's optimizers, which update `weights`, back from a saved state."""
    names = {id(parameter): name for name, parameter in weights.items()}
    moments: dict[str, dict[str, Tensor]] = {}
    prefix = f"{label}/optimizer/"
    for key, tensor in tensors.items():
        if key.startswith(prefix):
            name, _, moment = key.removeprefix(prefix).rpartition("/")
            moments.setdefault(name, {})[moment] = tensor
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                values = moments.get(names[id(parameter)])
                if values is not None:
                    optimizer.state[parameter] = {
                        key: cut_like(value, parameter) for key, value in values.items()
                    }


def saved_buffers(model: LanguageModel) -> dict[str, Tensor]:
    """What a checkpoint holds besides parameters: nothing trains it, so it is in no student's weights."""
    stored = model.state_dict()
    return {name: tensor for name, tensor in model.named_buffers() if name in stored}


def save_checkpoint(
    folder: Path,
    model: LanguageModel,
    weights: Mapping[str, Tensor],
    tokenizer: Any,
    lineage: dict[str, Any],
    dtype: torch.dtype,
    training: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write a Hugging Face folder with its lineage; it appears under its name only when whole.

    Args:
        weights: the model's parameters by name, in `dtype`.
        training: its loss curve (`watch.training_rows`); empty: no file of it.

    Raises:
        RunFolderError: the disk is full or the folder cannot be written.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        stored = model.config.dtype
        model.config.dtype = dtype
        with without_progress_bars():
            model.save_pretrained(str(partial), state_dict={**saved_buffers(model), **weights})
        model.config.dtype = stored
        tokenizer.save_pretrained(partial)
        for path in partial.rglob("*.safetensors"):
            _sync(path)
    except (OSError, RuntimeError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise RunFolderError(f"{folder}: the checkpoint cannot be written ({error})") from error
    write_json(partial / "lineage.json", lineage)
    if training:
        write_text(partial / TRAINING, "".join(json.dumps(row, allow_nan=False) + "\n" for row in training))
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)
