"""The one progress bar: time left, a rate, and a few live figures."""

import os
import sys
import threading
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

LOG_SECONDS = 10.0
"""Between two redrawings where stderr is no terminal: a log keeps every one of them."""


class _Bar(tqdm):
    """A bar whose lock is this process's own.

    tqdm's is shared with forked processes: one that is killed while it draws keeps it for ever.
    """


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
        desc=what,
        unit=unit,
        unit_scale=unit == "tok",
        delay=0.5,
        mininterval=0.1 if sys.stderr.isatty() else LOG_SECONDS,
        disable=quiet,
        dynamic_ncols=True,
        smoothing=0.1,
    )
