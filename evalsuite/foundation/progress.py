"""The one progress bar: time left, a rate, and a few live figures."""

import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm

LOG_SECONDS = 10.0
"""Between two redrawings where stderr is no terminal: a log keeps every one of them."""


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
    return tqdm(
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
