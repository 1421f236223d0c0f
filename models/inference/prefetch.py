"""Items of an iterator, computed ahead in a thread."""

import threading
from collections.abc import Iterable, Iterator
from queue import Full, Queue
from typing import TypeVar

Item = TypeVar("Item")

_POLL_SECONDS = 0.1


def prefetch(items: Iterable[Item], depth: int = 1) -> Iterator[Item]:
    """Yield the items of `items`, up to `depth` of which a thread computes before they are needed.

    What computes them must release the interpreter lock to gain from it, as tokenizers do. An exception is
    raised in its item's place. The thread ends with the generator, after the item that it computes then.
    """
    queue: Queue[tuple[bool, Item | BaseException | None]] = Queue(depth)
    closed = threading.Event()

    def put(more: bool, value: Item | BaseException | None) -> bool:
        while not closed.is_set():
            try:
                queue.put((more, value), timeout=_POLL_SECONDS)
            except Full:
                continue
            return True
        return False

    def compute() -> None:
        try:
            for item in items:
                if not put(True, item):
                    return
            put(False, None)
        except BaseException as error:
            put(False, error)

    thread = threading.Thread(target=compute, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            more, value = queue.get()
            if more:
                yield value  # type: ignore[misc]
            elif isinstance(value, BaseException):
                raise value
            else:
                return
    finally:
        closed.set()
        thread.join()
