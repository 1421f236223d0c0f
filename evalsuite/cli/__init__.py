"""The command line: `main` turns arguments into one call and one exit code."""

import os
import sys
from collections.abc import Sequence

from evalsuite.cli.interrupts import interruptible


def main(argv: Sequence[str] | None = None, ends_with: list[int] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        argv: default: those of the process.
        ends_with: see `end_quickly`, for a process that does nothing else.
    """
    _open_closed_streams()

    def dispatch() -> int:
        if ends_with is not None:
            from evalsuite.foundation.garbage_collection import collect_rarely
            from evalsuite.foundation.process_end import end_quickly

            collect_rarely()
            end_quickly(ends_with)
        from evalsuite.cli.entry import main as dispatch

        return dispatch(argv)

    return interruptible("evalsuite", dispatch)


def run() -> int:
    """Run the command line as a process of its own, which ends soon after this returns its exit code."""
    codes: list[int] = []
    codes.append(main(ends_with=codes))
    return codes[0]


def _open_closed_streams() -> None:
    """Give a process without stdin, stdout or stderr (`>&-`) null devices, before files get their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 -- open as long as the process
