"""The command line: `main` turns arguments into one call and one exit code."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType


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


def interruptible(name: str, call: Callable[[], int]) -> int:
    """Return what `call` returns, or the exit code of an interruption.

    SIGTERM interrupts like Ctrl-C, with exit code 143 instead of 130: files are complete and the
    command may be repeated. Both print one line, also while the modules of the command load.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    previous = signal.signal(signal.SIGTERM, _interrupt) if in_main_thread else None
    try:
        return call()
    except KeyboardInterrupt as interrupt:
        word, code = describe_interrupt(interrupt)
        print(f"{name}: {word}", file=sys.stderr)
        return code
    finally:
        if in_main_thread:
            signal.signal(signal.SIGTERM, previous)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


def describe_interrupt(interrupt: KeyboardInterrupt) -> tuple[str, int]:
    """Return the word and the exit code (128 + signal) of an interruption; its argument is the signal."""
    number = interrupt.args[0] if interrupt.args else signal.SIGINT
    return "terminated" if number == signal.SIGTERM else "interrupted", 128 + number
