"""Garbage collection, paused where a process makes many objects that it keeps."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
