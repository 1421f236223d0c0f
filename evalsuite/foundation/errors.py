"""Errors that name the file, the field, the value and the way out.

The command line prints an `EvalsuiteError` as one message and exits with the code of its class. All codes are
64 or more (after BSD's sysexits), so that an error never looks like a verdict of the gate.
"""

import difflib
from collections.abc import Iterable

from evalsuite.foundation.terminal import printable


class EvalsuiteError(Exception):
    """Base of every error that evalsuite raises on purpose."""

    exit_code = 70


class ConfigError(EvalsuiteError):
    """A recipe, suite, benchmark, policy or option that cannot be used as written."""

    exit_code = 64


class DataError(EvalsuiteError):
    """Data that is missing, empty or does not follow its schema."""

    exit_code = 65


class CheckpointError(EvalsuiteError):
    """A checkpoint that is missing, truncated, unsafe or of another schema.

    Its message quotes names from files of strangers; what would control a terminal is escaped.
    """

    exit_code = 66

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class MissingDependencyError(EvalsuiteError):
    """An optional package that this command needs is not installed, or has the wrong version."""

    exit_code = 69


class RunFolderError(EvalsuiteError):
    """A run or output folder that holds other content, is locked, is full or cannot be written."""

    exit_code = 73


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint such as ``; did you mean 'gated_deltanet'?``, or the known names if none is near."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; known: {', '.join(names)}" if names else ""
