"""A limit on processor time, for metrics that may never come to an end."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TookTooLongError(BaseException):
    """Raised inside what took too long. No Exception: what it interrupts must not swallow it."""


@contextmanager
def processor_limit(seconds: float) -> Iterator[None]:
    """Raise TookTooLongError inside the block after this much processor time of the process.

    Processor time, unlike time of day, comes out alike on a busy machine. Only the main thread can be
    interrupted; elsewhere there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise TookTooLongError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def mathematics_without_forks() -> Iterator[None]:
    """Keep EvalScope from forking a process for every formula that it reads.

    It does so to be able to stop; inside `processor_limit` a signal stops sympy and regular expressions
    alike. A thousand answers of GSM8K are judged in seconds rather than minutes.
    """
    from evalscope.metrics.math import parser

    available = parser.isolation_available
    if threading.current_thread() is threading.main_thread():
        parser.isolation_available = lambda: False
    try:
        yield
    finally:
        parser.isolation_available = available
