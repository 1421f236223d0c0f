"""The command line: `main` turns arguments into one call and one exit code."""

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from evalsuite.cli.interrupts import interruptible


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    _open_closed_streams()

    def dispatch() -> int:
        from evalsuite.cli.entry import main as dispatch

        return dispatch(argv)

    return interruptible("evalsuite", dispatch)


def run() -> int:
    """Run the command line as a process of its own, which ends soon after this returns its exit code.

    Threads and exit handlers end as usual; what Python does after them takes longer than a second once torch
    is imported, and frees only what ends with the process.
    """
    # Importing torch or pandas makes hundreds of thousands of objects that stay. Looking for cycles after
    # every 700 of them takes a fifth of the time of a short command.
    gc.set_threshold(10_000, *gc.get_threshold()[1:])
    codes: list[int] = []
    # The handler that is registered first is called last.
    atexit.register(_end, codes)
    codes.append(main())
    return codes[0]


def _open_closed_streams() -> None:
    """Give a process without stdin, stdout or stderr (`>&-`) null devices, before files get their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 -- open as long as the process


def _end(codes: Sequence[int]) -> None:
    if codes:
        for stream in (sys.stdout, sys.stderr):
            # `guarded` has reported what could not be written.
            with suppress(OSError):
                stream.flush()
        os._exit(codes[0])
