"""Imports both harnesses, and tokenizers, when it is imported, for a process that workers are forked from.

What cannot be imported is left to the worker that needs it, which names it.
"""

from contextlib import suppress
from importlib import import_module

from evalsuite.foundation.garbage_collection import collection_paused
from evalsuite.protocols.isolation import quiet_harness

MODULES = (
    "lm_eval.api.task",
    "lm_eval.tasks",
    "evalsuite.protocols.evalscope_adapter",
    "evalscope.metrics.math.parser",
    "nltk",
    "transformers.tokenization_utils_tokenizers",
)

with suppress(ImportError), quiet_harness(), collection_paused():
    for name in MODULES:
        # An exception here would end the process before any worker could report it.
        with suppress(Exception):
            import_module(name)

# EvalScope imports sympy with the first formula, which each worker would do by itself while a run scores.
with suppress(Exception), quiet_harness(), collection_paused():
    from math_verify import parse

    # Builds the tables of the grammar. Without a limit of time, which takes a signal.
    parse("$1$", parsing_timeout=None)
