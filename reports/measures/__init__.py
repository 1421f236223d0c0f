"""The quantities of a report: one module each, which owns its table, its figures and its place on the page.

Importing this package registers all of evalsuite's own.
"""

from collections.abc import Iterator
from dataclasses import replace
from json import dumps
from typing import Any

from evalsuite.foundation.registry import import_submodules
from evalsuite.reports.json_values import to_json
from evalsuite.reports.measure import MEASURES, usable
from evalsuite.reports.measure import problems as unusable
from evalsuite.reports.measures.leaderboard import LEADERBOARD, leaderboard
from evalsuite.reports.report import Report, resampled
from evalsuite.reports.rules.metric import RuleMetric
from evalsuite.reports.table import Table

import_submodules(__name__, __path__)


def tables() -> list[Table[Any]]:
    """The tables of all measures that can be used, in order of registration."""
    return [table for name in usable() for table in MEASURES[name].tables]


def computed(report: Report) -> tuple[list[Table[Any]], list[str]]:
    """The tables with the rows of a report, and why the table or the measure of a package is left out."""
    found: dict[str, Table[Any]] = {}
    problems = unusable()
    for name in usable():
        for table in MEASURES[name].tables:
            origin = MEASURES.origin(name)
            if table is LEADERBOARD:
                wider, left_out = report.of(leaderboard)
                found[table.name] = _with_rows(wider, report)
                problems += left_out
            elif origin == "evalsuite":
                found[table.name] = _with_rows(table, report)
            elif table.name in found:
                problems.append(f"table '{table.name}' of {origin} is left out: another measure has one")
            else:
                try:
                    found[table.name] = _with_rows(table, report)
                    found[table.name].check(report)
                    dumps(found[table.name].to_json(report), allow_nan=False)
                except Exception as error:  # whatever a foreign measure raises
                    found.pop(table.name, None)
                    problems.append(_left_out(f"table '{table.name}'", origin, error))
    problems += report.of(lists)[1]
    report.forget(resampled)
    return sorted(found.values(), key=lambda table: not table.is_always_written), problems


def lists(report: Report) -> tuple[dict[str, list[Any]], list[str]]:
    """Further lists of report.json by name, and why one of a package is left out."""
    found: dict[str, list[Any]] = {}
    problems = []
    for measure in usable():
        for name, rows in MEASURES[measure].json.items():
            origin = MEASURES.origin(measure)
            if origin == "evalsuite":
                found[name] = to_json(list(report.of(rows)))
                continue
            try:
                if name in found:
                    raise ValueError("another measure has one")
                values = to_json(list(report.of(rows)))
                dumps(values, allow_nan=False)
                found[name] = values
            except Exception as error:  # whatever a foreign measure raises
                problems.append(_left_out(f"list '{name}'", origin, error))
    return found, problems


def rule_metrics() -> dict[str, RuleMetric]:
    """What rules of the gate can demand, by name: of the measures that can be used."""
    found: dict[str, RuleMetric] = {}
    for name, metric in _rule_metrics():
        found.setdefault(name, metric)
    return found


def rule_metric(name: str) -> RuleMetric | None:
    """The metric of a name; None if there is none. A package is imported only if evalsuite has no such."""
    return next((metric for other, metric in _rule_metrics() if other == name), None)


def _rule_metrics() -> Iterator[tuple[str, RuleMetric]]:
    return (item for measure in usable() for item in MEASURES[measure].metrics.items())


def _left_out(what: str, origin: str, error: Exception) -> str:
    return f"{what} of {origin} is left out: {type(error).__name__}: {error}"


def _with_rows(table: Table[Any], report: Report) -> Table[Any]:
    """The table with rows, notes and figures that are computed once."""
    rows, notes, figures = list(table.rows(report)), list(table.notes(report)), list(table.figures(report))
    return replace(table, rows=lambda _: rows, notes=lambda _: notes, figures=lambda _: figures)
