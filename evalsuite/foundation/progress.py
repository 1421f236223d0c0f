"""Progress bar with time left, rate and live figures."""

import os
import sys
import threading
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

from evalsuite.foundation.terminal import printable

LOG_SECONDS = 10.0
"""Seconds between redraws when stderr is not a terminal, where every redraw becomes a log line."""


class _Bar(tqdm):
    """A tqdm bar with a lock per process.

    tqdm's own lock is shared with forked processes; one that is killed while drawing never releases it.
    Descriptions may hold names from files.
    """

    def set_description(self, desc: str | None = None, refresh: bool | None = True) -> None:
        super().set_description(None if desc is None else printable(desc), refresh)


def _own_lock() -> None:
    _Bar.set_lock(threading.RLock())


_own_lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_own_lock)


def progress(
    iterable: Iterable[Any] | None = None,
    *,
    total: int | None = None,
    what: str,
    unit: str = "it",
    quiet: bool = False,
) -> Any:
    """Return a tqdm bar. It shows after half a second and writes to stderr.

    Call ``.update(n)`` and ``.set_postfix(loss=…)`` on it, or iterate over it.
    """
    return _Bar(
        iterable,
        total=total,
        desc=printable(what),
        unit=unit,
        unit_scale=unit == "tok",
        delay=0.5,
        mininterval=0.1 if sys.stderr.isatty() else LOG_SECONDS,
        disable=quiet,
        dynamic_ncols=True,
        smoothing=0.1,
    )
