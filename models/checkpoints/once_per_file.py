"""What a process, or any on this machine, derives from files until they change. Importing this is cheap."""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from evalsuite.foundation import RunFolderError, content_hash, write_text
from evalsuite.foundation.cache_folder import cache_folder

Derived = TypeVar("Derived")

_KNOWN: dict[tuple[str, str], tuple[tuple[int, ...], Any]] = {}
"""What, path as given → the file it was derived from, and the value."""


def once_per_file(what: str, path: str | Path, derive: Callable[[], Derived]) -> Derived:
    """Return what `derive` returns; it is called again only when another file lies at `path`.

    Args:
        what: name of the value. Callers share it, and must not change it.
        path: the file, as given: it may be part of the value.

    Raises:
        OSError: there is no such file. Whatever `derive` raises is raised again by the next call.
    """
    key, file = (what, str(path)), _identity(path)
    if key not in _KNOWN or _KNOWN[key][0] != file:
        _KNOWN[key] = file, derive()
    derived: Derived = _KNOWN[key][1]
    return derived


SETTLED_SECONDS = 2.0
"""Age of a file from which another change shows in its time, however coarse the file system's clock is."""


def kept_on_disk(what: str, files: Iterable[Path], derive: Callable[[], str]) -> str:
    """Return the text that `derive` returns, which the user's cache keeps until one of these files changes.

    Without such a cache it is derived by each process.

    Args:
        what: name of the text, and of a folder in the cache.
        files: all that it depends on, the code that derives it included.
    """
    found = [(str(file), *_identity(file)) for file in sorted(files)]
    folder = cache_folder()
    if folder is None or any(time.time() - time_ns / 1e9 < SETTLED_SECONDS for *_, time_ns in found):
        return derive()
    path = folder / what / content_hash(found, 32)
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    text = derive()
    with suppress(RunFolderError):
        write_text(path, text)
    return text


def _identity(path: str | Path) -> tuple[int, int, int, int]:
    at = os.stat(path)
    return at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns
