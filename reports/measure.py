"""Measures: the quantities of a report, evalsuite's own and those of other packages.

    MEASURES.add("pairs", Measure(tables=(PAIRS,)))

registers one of evalsuite; another package names a `Measure` as an entry point of `evalsuite.measures`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evalsuite.foundation.registry import Registry
from evalsuite.reports.table import Column, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One quantity: all that shows it."""

    tables: Sequence[Table[Any]] = ()
    columns: Sequence[Column[Any]] = ()
    """Columns of the leaderboard, whose rows are `measures.leaderboard.Entry`."""


def _is_measure(item: Measure) -> Measure:
    if not isinstance(item, Measure):
        raise TypeError("it must be an instance of evalsuite.reports.measure.Measure")
    return item


MEASURES: Registry[Measure] = Registry("measure", group="evalsuite.measures", validate=_is_measure)


def usable() -> list[str]:
    """Names of the measures that can be used, in order of registration."""
    return [name for name in MEASURES.names() if MEASURES.problem(name) is None]
