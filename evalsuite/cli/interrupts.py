"""Interruptions of a command, by Ctrl-C or SIGTERM, as one line and an exit code.

The command line imports this module first, so it imports nothing that takes time to load.
"""

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType


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
