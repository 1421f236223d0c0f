"""Engines of the infer phase: which one runs a checkpoint, on which device, and which checkpoints run.

This module needs the run folder, the checkpoints and `evalsuite.models`, but no harness and no pydantic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from evalsuite.config import RunConfig
from evalsuite.evaluation.checkpoints import CheckpointRegistry, diverged_students
from evalsuite.evaluation.loss_curves import read_curve, write_curves
from evalsuite.foundation import ConfigError
from evalsuite.models.checkpoints.precision import split_precision
from evalsuite.models.engines import engine_type
from evalsuite.models.inference.base import Engine
from evalsuite.models.inference.registry import EngineSettings, EngineType
from evalsuite.reports.run import Checkpoint, Manifest, still_diverged, write_manifest


class EngineFactory(Protocol):
    """Loads a checkpoint and returns its engine."""

    def __call__(self, path: str, label: str | None) -> Engine:
        """Raises CheckpointError for a checkpoint that cannot be loaded."""


def engine_factory(
    engine: str,
    *,
    device: str,
    dtype: str,
    trust_remote_code: bool,
    arguments: Mapping[str, Any] | None = None,
    max_length: int | None = None,
) -> EngineFactory:
    """Return the factory of an engine; `max_length` as in `EngineSettings`.

    Raises:
        ConfigError: an unknown engine, or arguments or a `max_length` for an engine that takes none.
        MissingDependencyError: raised by the factory if the engine needs a package that is not installed.
    """
    kind = engine_type(engine, arguments or {}, max_length)

    def make(path: str, label: str | None) -> Engine:
        _check_precision(kind, path)
        resolved_device, resolved_dtype = resolve_device(device, dtype)
        settings = EngineSettings(
            device=resolved_device,
            dtype=resolved_dtype,
            label=label,
            trust_remote_code=trust_remote_code,
            max_length=max_length,
            arguments=arguments or {},
        )
        return kind.open(path, settings)

    return make


def check_device(engine: str, device: str) -> None:
    """Raise ConfigError for a device that is given to an engine that chooses its devices itself."""
    if device != "auto" and engine_type(engine, {}).chooses_devices:
        raise ConfigError(
            f"'device' (--device) = {device} has no effect on engine {engine}, which chooses among the "
            "visible devices; leave it out, and set CUDA_VISIBLE_DEVICES instead"
        )


def check_servable(config: RunConfig, paths: Sequence[str]) -> None:
    """Refuse an unknown engine, invalid settings, and checkpoints that it cannot serve, before any work.

    Engines that load a checkpoint as they open it are opened later, one at a time.
    """
    make = engine_factory(
        config.engine,
        device=config.device,
        dtype=config.dtype,
        trust_remote_code=config.trust_remote_code,
        arguments=config.engine_args,
        max_length=config.max_length,
    )
    check_device(config.engine, config.device)
    kind = engine_type(config.engine, config.engine_args)
    for path in paths:
        _check_precision(kind, path)
        if kind.opens_unloaded:
            make(path, "")


def _check_precision(kind: type[EngineType], path: str) -> None:
    """Raise ConfigError for a checkpoint with settings that this engine does not apply."""
    _, precision = split_precision(path)
    if precision and not kind.rounds:
        raise ConfigError(
            f"{path}: engine {kind.name} does not round weights or states ({precision}); use engine torch"
        )


def resolve_device(device: str, dtype: str) -> tuple[str, str]:
    """Resolve `auto`: a GPU if available; float32 on a CPU, where bfloat16 is slow, else bfloat16."""
    import torch

    resolved = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    return resolved, ("float32" if resolved == "cpu" else "bfloat16") if dtype == "auto" else dtype


def select_checkpoints(
    manifest: Manifest, paths: Sequence[str], *, trust_remote_code: bool = False
) -> list[Checkpoint]:
    """Return the checkpoints of a run at `paths`.

    Paths may differ between machines; checkpoints are identified by their weights.

    Raises:
        ConfigError: a checkpoint without requests in this run.
    """
    by_path = {each.path: each for each in manifest.checkpoints}
    by_weights = {each.weights_id: each for each in manifest.checkpoints}
    found = {}
    for path in paths:
        each = by_path.get(path)
        if each is None:
            from evalsuite.models.checkpoints.load import describe_checkpoint

            info = describe_checkpoint(
                path, trust_remote_code=trust_remote_code, variants=True, shares_tokenizer=True
            )
            weights_id = info.weights_id
            if weights_id not in by_weights:
                raise ConfigError(f"{path}: not a checkpoint of this run; build its requests first")
            each = replace(by_weights[weights_id], path=path)
        found[each.weights_id] = each
    return list(found.values())


def register_checkpoints(
    run: Path,
    manifest: Manifest,
    paths: Sequence[str],
    diverged: Sequence[str] = (),
    *,
    trust_remote_code: bool = False,
) -> Manifest:
    """Add checkpoints to a run whose requests exist for their tokenizer, as students.

    A GPU host can evaluate a student that was trained there without suite or data: if its tokenizer is that
    of another checkpoint of the run, its requests exist. Loss curves are copied into the run for all
    paths, known checkpoints included.

    Args:
        run, manifest: the run folder, which this process has locked.
        paths: of checkpoints.
        diverged: folders with notes on students that diverged in training, see `diverged_students`.

    Raises:
        ConfigError: another tokenizer, or positions that do not reach the run's `max_length`.
        CheckpointError: a checkpoint or a note that cannot be read.
        DataError: an incomplete loss curve.
    """
    from evalsuite.evaluation.checkpoints import check_max_length, describe_checkpoints
    from evalsuite.models.checkpoints.load import training_file

    known = {each.path: each.label for each in manifest.checkpoints}
    curves = {
        known[path]: read_curve(file)
        for path in paths
        if path in known and (file := training_file(Path(path).expanduser())) is not None
    }
    found = list(manifest.checkpoints)
    registry = CheckpointRegistry(found)
    for path in dict.fromkeys(path for path in paths if path not in known):
        (checkpoint,) = describe_checkpoints([path], None, trust_remote_code=trust_remote_code)
        is_known = checkpoint.weights_id in registry.labels
        label = registry.add(checkpoint)
        if checkpoint.training is not None:
            curves[label] = read_curve(checkpoint.training)
        if is_known:
            continue
        if all(each.tokenizer != checkpoint.tokenizer for each in found):
            raise ConfigError(
                f"{path}: {run} has no requests for its tokenizer; build them first with --build-only"
            )
        if manifest.max_length is not None:
            check_max_length([checkpoint], manifest.max_length)
        found.append(replace(checkpoint.stated, label=label))
    write_curves(run, curves)
    notes = still_diverged((*manifest.diverged, *diverged_students(diverged)), found)
    grown = replace(manifest, checkpoints=tuple(found), diverged=notes)
    if grown != manifest:
        write_manifest(run, grown)
    return grown
