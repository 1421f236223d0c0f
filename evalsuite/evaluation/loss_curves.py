"""Loss curves of students, copied into a run folder and merged from shards.

This module needs only the standard library: a GPU host that only runs inference has no pydantic.
"""

from collections.abc import Mapping
from pathlib import Path

from evalsuite.foundation import DataError, write_bytes
from evalsuite.reports.records.loss_curves import loss_curve_path, parse_loss_curves


def read_curve(path: Path, source: str = "", remedy: str = "copy the checkpoint again") -> bytes:
    """Read and validate the loss curve of one student.

    Args:
        path: the file.
        source: its name in errors; empty: the path.
        remedy: what the user can do about an invalid file, besides deleting it.

    Raises:
        DataError: the file is empty or has an invalid line; the message names file and line.
    """
    data = path.read_bytes()
    source = source or str(path)
    try:
        if not parse_loss_curves(data, "", source):
            raise DataError(f"{source}: empty")
    except DataError as error:
        raise DataError(
            f"{error}; {remedy}, or delete the file to continue without its loss curve"
        ) from error
    return data


def read_curves(files: Mapping[str, Path | None]) -> dict[str, bytes]:
    """Read loss curves: weights_id → file, or None for a student without one. Raises as `read_curve`."""
    return {weights_id: read_curve(path) for weights_id, path in files.items() if path is not None}


def write_curves(run: Path, curves: Mapping[str, bytes]) -> None:
    """Write loss curves into a run, by label; curves of other labels are left untouched."""
    for label, data in curves.items():
        path = loss_curve_path(run, label)
        if not path.is_file() or path.read_bytes() != data:
            write_bytes(path, data)


def rename_curves(run: Path, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Rename loss curves of checkpoints whose labels have changed.

    Args:
        run: the run folder.
        before, now: weights_id → label.
    """
    moved = {old: now[weights_id] for weights_id, old in before.items() if now.get(weights_id, old) != old}
    curves = {
        new: loss_curve_path(run, old).read_bytes()
        for old, new in moved.items()
        if loss_curve_path(run, old).is_file()
    }
    write_curves(run, curves)
    for old in moved.keys() - curves.keys():
        loss_curve_path(run, old).unlink(missing_ok=True)
