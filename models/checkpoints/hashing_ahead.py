"""Weights that are hashed before it is known what else is read of them. Importing this module is cheap."""

import queue
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path

from evalsuite.foundation import CheckpointError
from evalsuite.models.checkpoints.fingerprint import weights_id
from evalsuite.models.checkpoints.location import locate_here

_AHEAD: dict[Path, Future[str]] = {}
"""What threads are hashing, or have hashed."""
_THREADS = 4


@contextmanager
def hashing_ahead(sources: Iterable[str]) -> Iterator[None]:
    """Hash checkpoints that lie here in threads from now on, for the first call of `hashed` for each.

    Hashing hardly needs the interpreter, while a process imports what reads checkpoints. What cannot be
    hashed is reported by that call.

    Args:
        sources: as `load_checkpoint` takes them.
    """
    waiting: queue.SimpleQueue[tuple[Path, Future[str]]] = queue.SimpleQueue()
    mine: dict[Path, Future[str]] = {}
    for source in sources:
        with suppress(CheckpointError):
            location = locate_here(source)
            if location is not None and location.path not in _AHEAD:
                mine[location.path] = _AHEAD[location.path] = Future()
                waiting.put((location.path, mine[location.path]))
    for _ in range(min(_THREADS, len(mine))):
        # A command that fails does not wait for them.
        threading.Thread(target=_hash_waiting, args=(waiting,), name="hash", daemon=True).start()
    try:
        yield
    finally:
        for path, future in mine.items():
            future.cancel()
            if _AHEAD.get(path) is future:
                del _AHEAD[path]


def _hash_waiting(waiting: "queue.SimpleQueue[tuple[Path, Future[str]]]") -> None:
    while True:
        try:
            path, future = waiting.get_nowait()
        except queue.Empty:
            return
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(weights_id(path))
        except Exception as error:
            future.set_exception(error)


def hashed(path: Path) -> str:
    """The `weights_id` of a checkpoint, found ahead or now. Raises as that."""
    ahead = _AHEAD.pop(path, None)
    return weights_id(path) if ahead is None else ahead.result()
