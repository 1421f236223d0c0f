"""Calls on one object, in this process or in one of its own that works while this one does something else."""

import atexit
import os
import pickle
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Protocol

from evalsuite.foundation import RunFolderError


class Calls(Protocol):
    """Calls whose results are taken in the order in which they were started."""

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        """Call a function of a module with the object and these arguments, which can be pickled."""

    def result(self) -> Any:
        """Return the result of the oldest call whose result was not taken yet, or raise what it raised."""

    def close(self) -> None:
        """Release the object; calls without a result are given up."""


class Here:
    """Calls in this process, each when its result is taken."""

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        self._stack = ExitStack()
        self._target = self._stack.enter_context(make())
        self._calls: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        self._calls.append((function, args))

    def result(self) -> Any:
        function, args = self._calls.popleft()
        return function(self._target, *args)

    def close(self) -> None:
        self._stack.close()


class Background:
    """Calls in a process of its own, which ends when this object is closed or this process dies.

    Args:
        make: a function of a module, called in that process; it returns the object.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[Any]]) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make), name="background")
        self._process.start()
        theirs.close()
        self._running = 0
        # Without it Python would wait at its end for a process that waits for this one.
        atexit.register(self.close)

    def start(self, function: Callable[..., Any], *args: Any) -> None:
        self._running += 1
        # That the process was killed shows when its result is read.
        with suppress(ConnectionError):
            self._pipe.send((function, args))

    def result(self) -> Any:
        """Raises RunFolderError if the process was killed."""
        try:
            returned, value = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            self._process.join()
            raise RunFolderError(
                f"the process that builds and scores ended with exit code {self._process.exitcode}, perhaps "
                "out of memory; repeat the command to resume, if it happens again with fewer --workers"
            ) from error
        self._running -= 1
        if not returned:
            raise value
        return value

    def close(self) -> None:
        """The process may end a little later."""
        atexit.unregister(self.close)
        if self._running:
            self._process.terminate()
        self._pipe.close()
        if self._running:
            self._process.join()


def _serve(pipe: Connection, make: Callable[[], AbstractContextManager[Any]]) -> None:
    """In the process: make the object and call functions on it until the other side has gone."""
    # The other side decides what an interruption of both means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    with make() as target:
        with suppress(EOFError, ConnectionError):
            while True:
                function, args = pipe.recv()
                try:
                    reply = True, function(target, *args)
                except Exception as error:
                    reply = False, _portable(error)
                pipe.send(reply)
        # Workers that are being ended when it comes would be waited for without end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # As a forked process ends: freeing what is imported would take longer than a second.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _end(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # An exception lets the workers of this process end as well.
    raise SystemExit(128 + signal.SIGTERM)


def _portable(error: Exception) -> Exception:
    """Return an error as the other process can raise it."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:
        copy = RuntimeError(str(error))
    copy.add_note("".join(traceback.format_exception(error)))
    found: Exception = copy
    return found
