"""Garbage collection, rare in processes that import torch, and paused where many objects are made to stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def collect_rarely() -> None:
    """Look for cycles rarely in this process, which will import torch, pandas or the harnesses.

    That makes hundreds of thousands of objects that stay. Looking for cycles after every 700 of them takes a
    fifth of the time of a short command.
    """
    gc.set_threshold(10_000, *gc.get_threshold()[1:])


@contextmanager
def collection_paused() -> Iterator[None]:
    """Collect no garbage within this context.

    Importing torch, transformers and the harnesses, or reading responses, makes some hundred thousand objects
    that stay, and each collection traverses them: a fifth of the time that the imports take.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
