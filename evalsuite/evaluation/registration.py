"""Registration of checkpoints with a run whose requests are already built.

A GPU host can evaluate a student that was trained there without suite or data: if its tokenizer is that of
another checkpoint of the run, its requests exist.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from evalsuite.evaluation.checkpoints import CheckpointRegistry, diverged_students
from evalsuite.evaluation.loss_curves import read_curve, write_curves
from evalsuite.foundation import ConfigError
from evalsuite.reports.run import Manifest, still_diverged, write_manifest


def register_checkpoints(
    run: Path,
    manifest: Manifest,
    paths: Sequence[str],
    diverged: Sequence[str] = (),
    *,
    trust_remote_code: bool = False,
) -> Manifest:
    """Add checkpoints to a run whose requests exist for their tokenizer, as students.

    Loss curves are copied into the run for all paths, known checkpoints included.

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
        if all(each.tokenizer != checkpoint.tokenizer_id for each in found):
            raise ConfigError(
                f"{path}: {run} has no requests for its tokenizer; build them first with --build-only"
            )
        if manifest.max_length is not None:
            check_max_length([checkpoint], manifest.max_length)
        found.append(replace(checkpoint.described, label=label))
    write_curves(run, curves)
    notes = still_diverged((*manifest.diverged, *diverged_students(diverged)), found)
    grown = replace(manifest, checkpoints=tuple(found), diverged=notes)
    if grown != manifest:
        write_manifest(run, grown)
    return grown
