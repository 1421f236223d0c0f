"""Absolute paths of the machine, reduced to their last component in what leaves it."""

import re
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import Any

_PATHS = re.compile(
    r"(?<![\w.~/\\])(?:file://)?(?:/[\w.@+~%-]+){2,}/?" r"|(?<![A-Za-z])[A-Za-z]:\\[^\s'\"<>|]+"
)
"""Absolute paths of two components or more within a text; one component may be a unit: ``tokens /s``."""


def last_components(value: Any) -> Any:
    """Reduce every absolute path in the strings of a JSON value to its last component."""
    if isinstance(value, dict):
        return {key: last_components(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [last_components(each) for each in value]
    if isinstance(value, str) and "\n" not in value:
        kinds: tuple[type[PurePath], ...] = (PurePosixPath, PureWindowsPath)
        for kind in kinds:
            if kind(value).is_absolute() and kind(value).name:
                return kind(value).name
    return without_paths(value) if isinstance(value, str) else value


def without_paths(text: str) -> str:
    """Reduce the absolute paths within a text to their last components."""
    return _PATHS.sub(lambda found: re.split(r"[/\\]", found[0].rstrip("/\\"))[-1], text)
