"""What a process derives from a file, until the file changes. Importing this module is cheap."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

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
    at, key = os.stat(path), (what, str(path))
    file = at.st_dev, at.st_ino, at.st_size, at.st_mtime_ns
    if key not in _KNOWN or _KNOWN[key][0] != file:
        _KNOWN[key] = file, derive()
    derived: Derived = _KNOWN[key][1]
    return derived
