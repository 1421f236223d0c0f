"""The files of a log: listed by name at any depth, so that a file that cannot be read is refused by its name.

Content only tells formats apart. A listing by content would pass over each file that is damaged, and a gate
over the model that it holds.
"""

import os
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from evalsuite.foundation import DataError, EvalsuiteError
from evalsuite.reports.run import EARLIER, FILE, read_manifest

_WRAPPED = re.compile(r"\.(json|jsonl|eval)([.~ (_-].*)?$", re.IGNORECASE)
"""Names of JSON and archives, with whatever a compressor, an editor or a download appended."""
_PLAIN = re.compile(r"\.(json|jsonl|eval)$")


class Format(NamedTuple):
    """What the files of a format are called, and what they hold."""

    title: str
    name: re.Pattern[str]
    """Searched for in the name of a file: that of a log, also of a compressed or copied one."""
    keys: tuple[str, ...]
    """JSON keys that only this format has together; files that have them are logs whatever their name."""
    companions: re.Pattern[str] | None = None
    """Other JSON files that its folders hold. None: any, because the names of logs are unmistakable."""

    def is_log(self, file: Path) -> bool:
        """Whether a file is a log of this format: by its name, damaged or not, or by what it holds."""
        if self.name.search(file.name):
            return True
        return file.suffix == ".json" and _holds(file, self.keys)

    def logs(self, path: Path) -> list[Path]:
        """Files that are logs: `path` itself, or those below it. DataError: a folder cannot be listed."""
        if path.is_file() or path.is_symlink():
            return [path] if self.is_log(path) else []
        return [file for file in files_below(path) if self.is_log(file)]

    def listed(self, path: Path) -> list[Path]:
        """Files that are logs, after a check that no file below `path` is passed over.

        Raises:
            DataError: no log, or a file that cannot be read as one, so that its model would be missing.
        """
        logs = self.logs(path)
        if not logs:
            raise DataError(f"{path}: no log of {self.title} here{found_below(path)}")
        for file in logs:
            if not _PLAIN.search(file.name):
                raise DataError(
                    f"{file}: the name of a log of {self.title}, but not as it wrote it; restore the name, "
                    "decompress the file, or move it elsewhere"
                )
            if not file.is_file():
                raise DataError(f"{file}: {_kind(file)}, where a log of {self.title} is expected")
        if path.is_dir():
            self._refuse_others(path, set(logs))
        return logs

    def _refuse_others(self, path: Path, logs: Collection[Path]) -> None:
        folders = {file.parent for file in logs}
        for file in files_below(path):
            if file in logs:
                continue
            if file.name in _MANIFESTS:
                if not _is_imported(file):
                    raise DataError(
                        f"{file.parent}: a run folder among logs of {self.title}; pass it as another input"
                    )
                continue
            if not file.exists():
                raise DataError(f"{file}: {_kind(file)}; restore what it points to, or remove it")
            if not _WRAPPED.search(file.name):
                continue
            strict = self.companions is not None and file.parent in folders
            if strict and self.companions is not None and not self.companions.search(file.name):
                raise DataError(
                    f"{file}: no log of {self.title}, among its logs; restore it, or move it elsewhere"
                )
            if file.suffix == ".json" and file.is_file() and not _is_json(file):
                raise DataError(
                    f"{file}: not JSON, among logs of {self.title}; restore it, or move it elsewhere"
                )


_MANIFESTS = (FILE, EARLIER[0])


def files_below(path: Path) -> Iterator[Path]:
    """Files below a folder in order, also through links to folders; hidden ones are skipped.

    A run folder yields its manifest alone: what it holds is its own. DataError: a folder cannot be listed.
    """
    seen: set[tuple[int, int]] = set()
    for folder, folders, files in os.walk(path, followlinks=True, onerror=_refuse_unread(path)):
        status = os.stat(folder)
        real = status.st_dev, status.st_ino
        manifest = next((name for name in _MANIFESTS if name in files), None)
        if real in seen or (Path(folder) != Path(path) and manifest):
            folders.clear()
            if real not in seen and manifest:
                yield Path(folder, manifest)
            seen.add(real)
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        # A folder with the name of a log is where a log should be.
        named = [name for name in folders if _WRAPPED.search(name)]
        yield from (Path(folder, name) for name in sorted(files + named) if not name.startswith("."))


def _refuse_unread(path: Path) -> Callable[[OSError], None]:
    def refuse(error: OSError) -> None:
        # A path that is no folder has no files; a folder that cannot be listed may hold a model's.
        if os.path.isdir(path):
            raise DataError(f"{error.filename}: cannot be listed ({error.strerror or error})") from error

    return refuse


def found_below(path: Path) -> str:
    """What lies at a path that is no log, as the end of a message."""
    if not os.path.lexists(path):
        return " (there is no such file or folder)"
    if not path.is_dir():
        return f" ({_kind(path)})"
    names = [str(file.relative_to(path)) for file in files_below(path)]
    if not names:
        return " (the folder is empty)"
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return f" (found {', '.join(names[:3])}{more})"


def _kind(path: Path) -> str:
    if path.is_symlink() and not path.exists():
        return f"a link to {os.readlink(path)}, which does not exist"
    if path.is_dir():
        return "a folder"
    return "a file" if path.exists() else "missing"


def _holds(file: Path, keys: tuple[str, ...]) -> bool:
    try:
        data = file.read_bytes()
    except OSError:
        return False
    return all(f'"{key}"'.encode() in data for key in keys)


def _is_json(file: Path) -> bool:
    import json

    try:
        json.loads(file.read_bytes().decode())
    except (OSError, ValueError, RecursionError):
        return False
    return True


def _is_imported(manifest: Path) -> bool:
    """Whether a run folder was written from logs: reading these again repeats it."""
    try:
        return read_manifest(manifest.parent).harness is not None
    except EvalsuiteError:
        return False
