"""Calls in a process of its own, which works while this one does something else."""

import atexit
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Self

from evalsuite.foundation import RunFolderError
from evalsuite.foundation.garbage_collection import collect_rarely


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
        self._started = 0
        self._results: list[tuple[bool, Any]] = []
        """Whether a call returned, and what it returned or raised; in the order of the calls."""
        # Without it Python would wait at its end for a process that waits for this one.
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
        """Call a function of a module with the object and these arguments, which can be pickled.

        Returns:
            A function that waits for the call and returns its result, or raises what it raised; and
            RunFolderError if the process was killed.
        """
        # That the process was killed shows when its result is read.
        with suppress(ConnectionError):
            self._pipe.send((function, args))
        self._started += 1
        return partial(self._result, self._started - 1)

    def _result(self, number: int) -> Any:
        while len(self._results) <= number:
            try:
                self._results.append(self._pipe.recv())
            except (EOFError, ConnectionError) as error:
                self._process.join()
                raise RunFolderError(
                    f"the process that builds and scores ended with exit code {self._process.exitcode}, "
                    "perhaps out of memory; repeat the command to resume, if it happens again with fewer "
                    "--workers"
                ) from error
        returned, value = self._results[number]
        if not returned:
            raise value
        return value

    def close(self) -> None:
        """End the process, which may take a little longer; calls without a result are given up."""
        atexit.unregister(self.close)
        given_up = len(self._results) < self._started
        if given_up:
            self._process.terminate()
        self._pipe.close()
        if given_up:
            self._process.join()


def _serve(pipe: Connection, make: Callable[[], AbstractContextManager[Any]]) -> None:
    """In the process: make the object and call functions on it until the other side has gone."""
    # The other side decides what an interruption of both means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    collect_rarely()
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
