"""Crash-safe files: atomic writes, and append-only JSON lines whose torn last line is ignored."""

import csv
import fcntl
import io
import json
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from evalsuite.foundation.errors import DataError, RunFolderError

GRACE = 2.0
"""Seconds to retry a lock before reporting that another process holds it."""


_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}")
"""Names that `write_bytes` gives to temporary files: those of `tempfile.mkstemp` with a prefix."""


def write_bytes(path: Path, data: bytes) -> None:
    """Write `data` atomically: a reader sees the old file or the complete new one.

    The temporary file is locked while it is in use, unlike one that a killed process left behind.

    Raises:
        RunFolderError: the folder cannot be written or the disk is full.
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, path)
    except BaseException as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise RunFolderError(f"{path}: cannot be written ({error.strerror or error})") from error
        raise


def is_temporary(path: Path) -> bool:
    """Return whether a file has the name of a temporary file of `write_bytes`."""
    return _TEMPORARY.fullmatch(path.name) is not None


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files below `folder` that killed processes left behind."""
    for path in Path(folder).rglob(".*"):
        if not (is_temporary(path) and path.is_file()):
            continue
        with suppress(OSError), open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _umask() -> int:
    # The umask can only be read by setting it.
    current = os.umask(0)
    os.umask(current)
    return current


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        DataError: the file is missing, cannot be read, is not JSON (NaN and infinity are not), or an object
            has a key twice.
    """
    try:
        return parse_json(Path(path).read_bytes())
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON ({error})") from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


class DuplicateKeyError(ValueError):
    """A key that one JSON object has twice; a plain parser would keep the last value."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise DuplicateKeyError(f"key {twice!r} occurs twice in one object")
    return found


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique)
_WITH_NAN = json.JSONDecoder(object_pairs_hook=_unique)


def parse_json(data: bytes | str, *, allow_nan: bool = False) -> Any:
    """Parse JSON text, or its UTF-8.

    Args:
        data: one value.
        allow_nan: accept NaN and infinity, which JSON lacks and Python's writer has.

    Raises:
        ValueError: not JSON (numbers with thousands of digits included), or an object has a key twice.
        RecursionError: nested too deeply.
    """
    text = data.decode() if isinstance(data, bytes) else data
    return (_WITH_NAN if allow_nan else _DECODER).decode(text)


def _json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write `rows` as JSON lines, atomically. NaN and infinity are refused."""
    write_text(path, _json_lines(rows))


def write_csv(path: Path, header: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write a table as CSV, atomically; None is an empty cell."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    write_text(path, text.getvalue())


def append_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Append `rows` as one locked write and sync them to disk before returning.

    A torn last line of a killed process is truncated first, so that it cannot swallow a new row.

    Raises:
        RunFolderError: the folder cannot be written or the disk is full; no partial row remains.
    """
    data = _json_lines(rows).encode()
    if not data:
        return
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: closing would flush a buffer again, after the truncation below.
        with open(path, "a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            end = _complete_length(file)
            file.truncate(end)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be appended to ({error.strerror or error})") from error


def _complete_length(file: Any) -> int:
    """Bytes up to and including the last newline."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - 65536)
        file.seek(start)
        cut = file.read(end - start).rfind(b"\n")
        if cut >= 0:
            return int(start + cut + 1)
        end = start
    return 0


def read_jsonl(path: Path, *, appended: bool = True) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON-lines file.

    Args:
        path: a file; none has no rows.
        appended: a last line without newline is what a killed process was appending, and is skipped; in a
            file that was written at once it is damage.

    Raises:
        DataError: a line is not JSON, or incomplete; the message names file and line.
    """
    path = Path(path)
    if not path.exists():
        return
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                if appended:
                    return
                raise DataError(f"{path}, line {number}: ends within a line")
            try:
                row = parse_json(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {number}: not JSON ({error})") from error
            yield row


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on `path` (a small file, created if absent) across processes.

    A caller that does not wait owns the folder: temporary files of killed processes are removed from it.

    Raises:
        RunFolderError: `wait` is false and another process holds the lock, or the path cannot be written.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+b")  # noqa: SIM115 -- closed by the `with` below
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be written ({error.strerror or error})") from error
    with file:
        if wait:
            fcntl.flock(file, fcntl.LOCK_EX)
        elif not _try_lock(file):
            raise RunFolderError(f"{path}: another evalsuite process is using this folder")
        else:
            remove_leftovers(path.parent)
        yield


def _try_lock(file: IO[bytes]) -> bool:
    """Try to lock a file for `GRACE` seconds.

    A process killed between fork and exec leaves a child that holds its locks until exec closes them.
    """
    deadline = time.monotonic() + GRACE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        else:
            return True
