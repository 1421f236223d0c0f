"""Measures: the quantities of a report, evalsuite's own and those of other packages.

    MEASURES.add("pairs", Measure(tables=(PAIRS,)))

registers one of evalsuite; another package names a `Measure` as an entry point of `evalsuite.measures`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evalsuite.foundation.registry import Registry
from evalsuite.reports.report import Report
from evalsuite.reports.rules.metric import RuleMetric
from evalsuite.reports.table import Column, Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One quantity: all that shows it."""

    tables: Sequence[Table[Any]] = ()
    columns: Sequence[Column[Any]] = ()
    """Columns of the leaderboard, whose rows are `measures.leaderboard.Entry`."""
    metrics: Mapping[str, RuleMetric] = field(default_factory=dict)
    """What rules of the gate can demand, by name."""
    json: Mapping[str, Callable[[Report], Sequence[Any]]] = field(default_factory=dict)
    """Further lists of report.json, by name."""

    def describe(self) -> str:
        """Its tables with their files, leaderboard columns, gate metrics and lists of report.json."""
        parts = [f"{table.title} ({table.name}.csv)" for table in self.tables]
        for what, names in (
            ("leaderboard columns", [column.name for column in self.columns]),
            ("gate metrics", list(self.metrics)),
            ("lists of report.json", list(self.json)),
        ):
            parts += [f"{what} {', '.join(names)}"] if names else []
        return "; ".join(parts)


def _is_measure(item: Measure) -> Measure:
    if not isinstance(item, Measure):
        raise TypeError("it must be an instance of evalsuite.reports.measure.Measure")
    return item


MEASURES: Registry[Measure] = Registry("measure", group="evalsuite.measures", validate=_is_measure)


def usable() -> Iterator[str]:
    """Names of the measures that can be used, in order of registration."""
    return filter(MEASURES.is_usable, MEASURES.names())


def problems() -> list[str]:
    """Why measures of packages cannot be used."""
    return [why for name in MEASURES.names() if (why := MEASURES.problem(name)) is not None]
