"""Declared tables as the page shows them: a section of each, with one template for all."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalsuite.reports import formatting
from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.figures.figure import Figure
from evalsuite.reports.report import Report
from evalsuite.reports.section import TEMPLATES, Section
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.table import Column, Table


@dataclass(frozen=True, slots=True)
class Head:
    """The header of one column."""

    title: str
    hint: str
    first: str
    """`ascending` or `descending`, the first order of sorting; empty: not sorted by it."""
    is_number: bool


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its text, the interval below it, what it is sorted by and what is shown on hover."""

    text: str
    interval: str = ""
    sort: float | None = None
    hint: str = ""
    css: str = ""

    def packed(self) -> list[Any]:
        """As the page's script reads it, without empty ends."""
        found = [self.text, self.interval, self.sort, self.hint]
        while len(found) > 1 and found[-1] in ("", None):
            found.pop()
        return found


@dataclass(frozen=True, slots=True)
class TableView:
    """One table."""

    label: str
    css: str
    columns: Sequence[Head]
    rows: Sequence[Sequence[Cell]]
    intro: str
    notes: Sequence[str]
    figures: Sequence[Figure]
    fold: str


def cell(column: Column[Any], report: Report, row: Any) -> Cell:
    """A cell whose interval stands below it, or is shown on hover like the reason why it is undefined."""
    value = column.of(report, row) if column.show is None or column.better else None
    css = f"r {column.css(report, row) if column.css else ''}".strip() if column.unit != "text" else ""
    text = replace(column, with_interval=False).text(report, row)
    interval = value.interval if isinstance(value, Estimate) else value
    if not isinstance(interval, Interval):
        why = value.why if isinstance(value, Estimate) else ""
        below = "undefined" if why and column.with_interval else ""
        sort = column.sort_key(report, row) if column.better else None
        return Cell(text, below, None if sort is None else round(sort, 6), why, css)
    span = formatting.span(interval, 1 if column.unit == "number" else 100, column.digits)
    sort = round(interval.point, 6)
    if column.show is not None:
        return Cell(text, "", sort, column.note(report, row), css)
    if column.with_interval:
        return Cell(text, span, sort, "", css)
    note = column.note(report, row)
    return Cell(text, "", sort, f"95 % interval {span}" + (f"; {note}" if note else ""), css)


def head(column: Column[Any]) -> Head:
    """The header of a column."""
    first = {"lower": "ascending", "higher": "descending"}.get(column.better or "", "")
    return Head(column.header, column.hint, first, column.unit != "text")


def table_view(table: Table[Any], report: Report) -> TableView | None:
    """A table with what stands above it; None without any of these."""
    columns = table.columns_of("page") if table.shows_rows else []
    rows = [[cell(column, report, row) for column in columns] for row in table.rows(report) if columns]
    figures, notes = table.figures(report), table.notes(report)
    if not rows and not figures and not notes:
        return None
    css = f"sortable {table.name}" if any(column.better for column in columns) else table.name
    heads = [head(column) for column in columns]
    return TableView(table.title, css, heads, rows, table.intro, notes, figures, table.fold)


def table_section(table: Table[Any]) -> Section:
    """The section of a table that has a place on the page."""
    assert table.order is not None
    return Section(
        table.anchor or table.name,
        table.title,
        table.order,
        lambda report: table_view(table, report),
        TEMPLATES / "table.html.j2",
        table.nav or table.title,
    )
