"""Imports both harnesses when it is imported, for a process that workers are forked from.

A harness that is not installed is left to the worker that needs it, which names it.
"""

from contextlib import suppress
from importlib import import_module

from evalsuite.protocols.isolation import quiet_harness

with suppress(ImportError), quiet_harness():
    for name in (
        "lm_eval.api.task",
        "lm_eval.tasks",
        "evalsuite.protocols.evalscope_adapter",
        "evalscope.metrics.math.parser",
        "nltk",
    ):
        import_module(name)
