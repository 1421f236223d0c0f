"""The end of a process that has imported torch."""

import atexit
import os
import sys
from collections.abc import Sequence
from contextlib import suppress


def end_quickly(codes: Sequence[int]) -> None:
    """Let this process end right after its threads and exit handlers, with the first of these codes.

    What Python does after them takes longer than a second once torch is imported, and frees only what ends
    with the process. If there is no code by then, it ends as usual.
    """
    # The handler that is registered first is called last.
    atexit.register(_end, codes)


def _end(codes: Sequence[int]) -> None:
    if codes:
        for stream in (sys.stdout, sys.stderr):
            # `guarded` has reported what could not be written.
            with suppress(OSError):
                stream.flush()
        os._exit(codes[0])
