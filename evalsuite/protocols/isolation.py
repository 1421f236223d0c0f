"""Isolation of harness code: log output, global random state and processor time."""

import logging
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def quiet_harness() -> Iterator[None]:
    """Silence lm-eval, EvalScope and the progress bars of `datasets`, errors excepted.

    EvalScope reconfigures the root logger on import; its handlers and level are restored. IFEval's warning
    about responses without a language would appear twice per response, and is dropped.
    """
    import datasets

    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    for name in ("lm_eval", "evalscope", "math_verify"):
        _set_level(logging.getLogger(name), logging.ERROR)
    root.addFilter(_is_useful)
    try:
        yield
    finally:
        root.removeFilter(_is_useful)
        root.handlers[:] = handlers
        _set_level(root, level)
        if not bars:
            datasets.enable_progress_bars()


def _is_useful(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Unable to detect language")


def _set_level(logger: logging.Logger, level: int) -> None:
    """Set a level only if it changes: setting it clears the `isEnabledFor` cache of every logger."""
    if logger.level != level:
        logger.setLevel(level)


@contextmanager
def seeded_random() -> Iterator[None]:
    """Seed `random` for metrics that draw from it, and restore its state.

    IFEval counts a random letter if a question asks for a character that is none, as one does for "#".
    """
    before = random.getstate()
    random.seed(0)
    try:
        yield
    finally:
        random.setstate(before)


class CpuTimeExceededError(BaseException):
    """Raised inside code that exceeds its processor time. Not an Exception, so that nothing swallows it."""


@contextmanager
def cpu_time_limit(seconds: float) -> Iterator[None]:
    """Raise CpuTimeExceededError inside the block after this much processor time of the process.

    Processor time, unlike wall time, is the same on a busy machine. Only the main thread can be interrupted;
    other threads have no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise CpuTimeExceededError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
