"""Run folders: training states from which an interrupted run resumes, and Hugging Face checkpoints.

out/recipe.yaml                     the resolved recipe; a folder belongs to one recipe
out/metrics.jsonl                   loss curves of all students
out/state/<number>/                 tensors.safetensors and state.json; latest.json names the current one
out/checkpoints/<label>/<stage>-<tokens>/    intermediate checkpoints
out/<label>/                        the student, with lineage.json, its model card README.md and
                                    training.jsonl (its loss curve)
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from evalsuite.distill.model_card import FILE as CARD
from evalsuite.distill.recipe import NON_HASHED_FIELDS, Recipe, write_recipe
from evalsuite.distill.retired_keys import refuse_retired_keys
from evalsuite.distill.training.distributed import distribute_like, full_tensor
from evalsuite.distill.training.optimizers import load_state_tensors
from evalsuite.distill.types import CausalLM
from evalsuite.foundation import (
    CheckpointError,
    ConfigError,
    RunFolderError,
    is_temporary,
    read_json,
    write_json,
    write_text,
)
from evalsuite.foundation.strict import parse, read_yaml
from evalsuite.models.checkpoints import TRAINING, without_progress_bars

STATE_SCHEMA = 4
"""2: keys of the data loader's state were renamed. 3: stages continue the sources of earlier ones.
4: positions in data sources identify the files or the commit that were read."""


@dataclass
class TrainerState:
    """Progress of a run. `tokens` counts per stage; `data` is the state of the stage's data loader.

    `sources`: data source → its state at the end of the last finished stage that read it.
    """

    stage: int = 0
    step: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    data: dict[str, Any] | None = None
    seconds: float = 0.0
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def total_tokens(self) -> int:
        """Tokens trained on so far, over all stages."""
        return sum(self.tokens.values())

    @property
    def current_sources(self) -> dict[str, dict[str, Any]]:
        """Data source → its state after the last step."""
        return {**self.sources, **({} if self.data is None else self.data["sources"])}


def init_run_dir(out: Path, recipe: Recipe) -> None:
    """Create the run folder of `recipe`, or remove what a killed run left in it. Hold the folder's lock.

    Raises:
        RunFolderError: as `check_run_dir`, or `out` cannot be written.
    """
    check_run_dir(out, recipe)
    for partial in (*out.glob(".*.partial"), *(out / "checkpoints").glob("*/.*.partial")):
        shutil.rmtree(partial, ignore_errors=True)
    if not (out / "recipe.yaml").exists():
        write_text(out / "recipe.yaml", write_recipe(recipe))


STARTED = {".lock", "executor", "variants"}
"""What an output folder may hold before its recipe: the lock (and a temporary file) of a run that was killed
early, an executor's files, and variants that another worker trains."""


def check_run_dir(out: Path, recipe: Recipe) -> None:
    """Check that `out` is the run folder of `recipe`, or can become it.

    Raises:
        RunFolderError: `out` belongs to another run or an earlier version, or holds unrelated files.
    """
    path = out / "recipe.yaml"
    if path.exists():
        saved = read_yaml(path)
        try:
            refuse_retired_keys(saved, str(path))
            other = parse(saved, Recipe, str(path))
        except ConfigError as error:
            raise RunFolderError(
                f"{out} holds a run of an earlier version of evalsuite; choose a new folder ({error})"
            ) from None
        if other.hash != recipe.hash:
            difference = config_diff(saved, recipe.model_dump(mode="json"))
            raise RunFolderError(
                f"{out} holds another run (of recipe '{other.name}'; differs in {difference}); "
                "choose a new folder"
            )
        return
    if out.exists() and any(each.name not in STARTED and not is_temporary(each) for each in out.iterdir()):
        raise RunFolderError(f"{out} is not empty and is not the run folder of a recipe; choose a new folder")


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


def save_state(
    out: Path,
    state: TrainerState,
    weights: Mapping[str, Mapping[str, Tensor]],
    optimizer_states: Mapping[str, Mapping[str, Tensor]],
    *,
    is_main: bool = True,
) -> None:
    """Write everything a resumed run needs; the previous state is deleted only after this one is complete.

    Args:
        weights: label of each student → its master weights by name.
        optimizer_states: label → state of its optimizers, by `<parameter>/<name>`.
        is_main: False in processes that only take part in gathering sharded tensors.

    Raises:
        RunFolderError: the disk is full or the folder cannot be written.
    """
    tensors: dict[str, Tensor] = {"random": torch.get_rng_state()}
    for part, by_label in (("model", weights), ("optimizer", optimizer_states)):
        for label, named in by_label.items():
            for name, tensor in named.items():
                gathered = full_tensor(tensor)
                if is_main:
                    tensors[f"{label}/{part}/{name}"] = gathered.cpu().contiguous()
    if not is_main:
        return
    folder = out / "state"
    number = _latest(folder) + 1
    target = folder / f"{number:06d}"
    with _writing(target, f"{target}: the training state"):
        save_file(tensors, target / "tensors.safetensors")
        _sync(target / "tensors.safetensors")
        write_json(target / "state.json", {"schema": STATE_SCHEMA, **asdict(state)})
    write_json(folder / "latest.json", {"number": number})
    for old in folder.iterdir():
        if old.is_dir() and old != target:
            shutil.rmtree(old, ignore_errors=True)


def load_state(out: Path) -> tuple[TrainerState, dict[str, Tensor]] | None:
    """The last complete training state, or None.

    Raises:
        CheckpointError: it is damaged or has another schema.
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
    except Exception as error:  # safetensors raises its own exception class for truncated files
        raise CheckpointError(f"{target}: the training state is damaged ({error})") from error
    return TrainerState(**value), tensors


def _latest(folder: Path) -> int:
    path = folder / "latest.json"
    return int(json.loads(path.read_text())["number"]) if path.exists() else 0


@contextmanager
def _writing(folder: Path, what: str) -> Iterator[None]:
    """Write into a new folder, which is removed if that fails.

    safetensors and tokenizers report a full disk by exceptions of their own, the latter by a bare Exception;
    both quote the number of the operating system's error.

    Raises:
        RunFolderError: the disk is full or the folder cannot be written.
    """
    try:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        yield
    except Exception as error:
        shutil.rmtree(folder, ignore_errors=True)
        if not isinstance(error, (OSError, SafetensorError)) and "(os error " not in str(error):
            raise
        raise RunFolderError(f"{what} cannot be written ({error})") from error


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def load_master_weights(
    weights: Mapping[str, nn.Parameter], label: str, tensors: Mapping[str, Tensor]
) -> None:
    """Copy a student's master weights from a saved state."""
    prefix = f"{label}/model/"
    with torch.no_grad():
        for name, parameter in weights.items():
            if prefix + name not in tensors:
                raise CheckpointError(f"the training state has no '{name}' of {label}; start in a new folder")
            parameter.copy_(tensors[prefix + name])


def load_optimizer_state(
    weights: Mapping[str, nn.Parameter],
    label: str,
    optimizers: Sequence[torch.optim.Optimizer],
    tensors: Mapping[str, Tensor],
) -> None:
    """Copy the state of a student's optimizers, which update `weights`, from a saved state."""
    names = {id(parameter): name for name, parameter in weights.items()}
    states: dict[str, dict[str, Tensor]] = {}
    prefix = f"{label}/optimizer/"
    for key, tensor in tensors.items():
        if key.startswith(prefix):
            name, _, entry = key.removeprefix(prefix).rpartition("/")
            states.setdefault(name, {})[entry] = tensor
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                values = states.get(names[id(parameter)])
                if values is not None:
                    placed = {key: distribute_like(value, parameter) for key, value in values.items()}
                    load_state_tensors(optimizer, parameter, placed)


def persistent_buffers(model: CausalLM) -> dict[str, Tensor]:
    """The buffers that a checkpoint stores in addition to the parameters."""
    stored = model.state_dict()
    return {name: tensor for name, tensor in model.named_buffers() if name in stored}


def save_checkpoint(
    folder: Path,
    model: CausalLM,
    weights: Mapping[str, Tensor],
    tokenizer: Any,
    lineage: dict[str, Any],
    dtype: torch.dtype,
    loss_curve: Sequence[Mapping[str, Any]] = (),
    card: str = "",
) -> None:
    """Write a Hugging Face folder with its lineage and model card, atomically.

    Args:
        weights: the model's parameters by name, in `dtype`.
        card: text of README.md; empty: no such file.
        loss_curve: rows of training.jsonl (see `metrics.loss_curve`); empty: no such file.

    Raises:
        RunFolderError: the disk is full or the folder cannot be written.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    with _writing(partial, f"{folder}: the checkpoint"):
        config_dtype = model.config.dtype
        model.config.dtype = dtype
        with without_progress_bars():
            model.save_pretrained(str(partial), state_dict={**persistent_buffers(model), **weights})
        model.config.dtype = config_dtype
        tokenizer.save_pretrained(partial)
        for path in partial.rglob("*.safetensors"):
            _sync(path)
        write_json(partial / "lineage.json", lineage)
        if card:
            write_text(partial / CARD, card)
        if loss_curve:
            lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in loss_curve)
            write_text(partial / TRAINING, lines)
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(partial, folder)
