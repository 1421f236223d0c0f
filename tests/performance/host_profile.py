"""Where the host spends the time of a run: wall time by phase, each without the phases that it calls."""

import inspect
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

Targets = Mapping[str, Sequence[tuple[Any, str]]]
"""Phase → functions and methods, as (module or class, name)."""


class HostProfile:
    """Seconds by phase in the thread that made it, and under `aside` in all other threads."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.aside: dict[str, float] = {}
        self._thread = threading.get_ident()
        self._local = threading.local()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Attribute the time of this context to a phase, and take it away from the one around it."""
        stack: list[float] = self._local.__dict__.setdefault("stack", [])
        stack.append(0.0)
        started = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - started
            inner = stack.pop()
            if stack:
                stack[-1] += spent
            found = self.seconds if threading.get_ident() == self._thread else self.aside
            found[name] = found.get(name, 0.0) + spent - inner

    @contextmanager
    def attribute(self, targets: Targets) -> Iterator[None]:
        """Attribute calls of these functions to their phases within this context."""
        before = [(owner, name, getattr(owner, name)) for each in targets.values() for owner, name in each]
        for phase, functions in targets.items():
            for owner, name in functions:
                setattr(owner, name, self._timed(phase, getattr(owner, name)))
        try:
            yield
        finally:
            for owner, name, function in before:
                setattr(owner, name, function)

    def _timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.isgeneratorfunction(function):

            @wraps(function)
            def generate(*args: Any, **named: Any) -> Iterator[Any]:
                return self.steps(phase, function(*args, **named))

            return generate

        @wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            with self.phase(phase):
                return function(*args, **named)

        return call

    def steps(self, phase: str, items: Iterator[Any]) -> Iterator[Any]:
        """Yield the items of an iterator, whose own time belongs to a phase."""
        while True:
            with self.phase(phase):
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item

    def table(self, wall: float) -> str:
        """Text table with one line a phase, for a run of `wall` seconds."""
        rows = sorted(self.seconds.items(), key=lambda row: -row[1])
        rows.append(("elsewhere", wall - sum(self.seconds.values())))
        lines = [f"    {name:<26}{spent:>8.3f} s{spent / wall:>8.1%}" for name, spent in rows]
        lines += [f"    {name:<26}{spent:>8.3f} s  in another thread" for name, spent in self.aside.items()]
        return "\n".join(lines)
