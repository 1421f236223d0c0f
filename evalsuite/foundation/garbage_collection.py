"""Garbage collection, paused where a process imports what it keeps."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Collect no garbage within this context.

    torch, transformers and the harnesses make some hundred thousand objects that stay, and each collection
    traverses them: a fifth of the time that they take to import.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
