"""Imports what scores mathematics when it is imported, for a process that workers are forked from.

EvalScope imports sympy with the first formula, which each worker would do by itself while a run scores.
"""

from contextlib import suppress

from evalsuite.protocols.isolation import quiet_harness

# What cannot be imported is left to the worker that needs it, which names it.
with suppress(Exception), quiet_harness():
    from math_verify import parse

    # Builds the tables of the grammar. Without a limit of time, which takes a signal.
    parse("$1$", parsing_timeout=None)
