"""The harnesses, imported and used without their logs, bars and changes to the root logger."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_harness() -> Iterator[None]:
    """Keep errors of lm-eval and EvalScope; drop their chatter and the bars of `datasets`.

    EvalScope reconfigures the root logger when it is imported; that is undone.
    """
    import datasets

    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    for name in ("lm_eval", "evalscope", "math_verify"):
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        if not bars:
            datasets.enable_progress_bars()
