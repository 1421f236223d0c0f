"""Loss curves on their way: from a student's folder to its run, and home with its answers.

Needs the standard library alone: a GPU host that only answers has no pydantic.
"""

from collections.abc import Mapping
from pathlib import Path

from evalsuite.foundation import DataError, write_bytes
from evalsuite.reports.training import curve_path, parse_losses


def read_curve(path: Path, source: str = "", way_out: str = "copy the checkpoint again") -> bytes:
    """Read the curve of one student, which must be whole.

    Args:
        source: its name in errors; empty: the path.
        way_out: what else than to do without the curve can be done about one that is not.

    Raises:
        DataError: it is empty or a line is no step of a training; the message names file and line.
    """
    data = path.read_bytes()
    source = source or str(path)
    try:
        if not parse_losses(data, "", source):
            raise DataError(f"{source}: empty")
    except DataError as error:
        raise DataError(f"{error}; {way_out}, or delete the file and do without the loss curve") from error
    return data


def read_curves(files: Mapping[str, Path | None]) -> dict[str, bytes]:
    """Read the curves of those that have one: label → its file, or None. Raises as `read_curve`."""
    return {label: read_curve(path) for label, path in files.items() if path is not None}


def keep_curves(run: Path, curves: Mapping[str, bytes]) -> None:
    """Write curves into a run by label; what was put there by hand stays where no student brings its own."""
    for label, data in curves.items():
        path = curve_path(run, label)
        if not path.is_file() or path.read_bytes() != data:
            write_bytes(path, data)


def rename_curves(run: Path, before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Let curves follow their students where a run calls those otherwise than before.

    Args:
        before, now: weights_id → label.
    """
    moved = {old: now[weights_id] for weights_id, old in before.items() if now.get(weights_id, old) != old}
    curves = {
        new: curve_path(run, old).read_bytes() for old, new in moved.items() if curve_path(run, old).is_file()
    }
    keep_curves(run, curves)
    for old in moved.keys() - curves.keys():
        curve_path(run, old).unlink(missing_ok=True)
