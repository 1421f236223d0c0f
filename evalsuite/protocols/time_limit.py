"""A limit on processor time, for metrics that may never come to an end."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import FrameType
from typing import Any


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


@contextmanager
def each_number_worked_out_once() -> Iterator[None]:
    """Keep sympy from working out a part of a number again that it has just worked out.

    Its `evalf_mul` works out every factor twice, so that a quotient of n quotients, the `124/124/124/…` of a
    model that runs in circles, takes 2^n steps. With every part kept for as long as the block lasts it takes
    about n^2, and the number is the same: it depends on the part, the precision and the options alone.
    """
    from sympy.core import evalf as module

    work_out = module.evalf
    known: dict[tuple[Any, int, frozenset[tuple[str, Any]]], Any] = {}

    def once(part: Any, precision: int, options: dict[str, Any]) -> Any:
        if "subs" in options:
            return work_out(part, precision, options)
        key = (part, precision, frozenset(options.items()))
        if key not in known:
            known[key] = work_out(part, precision, options)
        return known[key]

    module.evalf = once
    try:
        yield
    finally:
        module.evalf = work_out


@contextmanager
def each_formula_read_once() -> Iterator[None]:
    """Keep EvalScope from reading a formula again that it has read before.

    The right answer of a question is read for every answer to it, and short answers are alike. Most of the
    time that a thousand answers of GSM8K take goes into reading.
    """
    from evalscope.metrics.math import parser

    read = parser._parse

    @lru_cache(maxsize=100_000)
    def once(text: str, mode: str) -> tuple[tuple[Any, ...], str]:
        objects, display = read(text, mode)
        return tuple(objects), display

    def parse(text: str, mode: str) -> tuple[list[Any], str]:
        objects, display = once(text, mode)
        return list(objects), display

    parser._parse = parse
    try:
        yield
    finally:
        parser._parse = read
