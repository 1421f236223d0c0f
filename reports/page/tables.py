"""Blocks as the template shows them, and the sections that declared tables have by themselves."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from evalsuite.foundation import counted
from evalsuite.reports import formatting
from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.blocks import Block, Fold, Part, Text, charts
from evalsuite.reports.report import Report
from evalsuite.reports.section import BLOCKS, Section
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.table import Column, Table

OPEN_ROWS = 12
"""Rows up to which a table that can be folded is open."""


@dataclass(frozen=True, slots=True)
class Head:
    """The header of one column."""

    title: str
    hint: str
    first: str
    """`ascending` or `descending`, the first order of sorting; empty: not sorted by it."""
    is_number: bool
    over: str = ""
    span: int = 0
    """Columns below `over`, at the first of them; 0 at the others."""


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
class Grid:
    """One declared table."""

    label: str
    css: str
    columns: Sequence[Head]
    rows: Sequence[Sequence[Cell]]

    @property
    def is_grouped(self) -> bool:
        """Whether headings stand above headers."""
        return any(column.over for column in self.columns)


def cell(column: Column[Any], report: Report, row: Any) -> Cell:
    """A cell whose interval stands below it, or is shown on hover like the reason why it is undefined."""
    value = column.of(report, row) if column.show is None or column.better else None
    classes = ["r"] if column.unit != "text" else []
    css = " ".join([*classes, *([column.css(report, row)] if column.css else [])]).strip()
    text = replace(column, with_interval=False).text(report, row)
    if column.about is not None:
        return Cell(text, column.about(report, row), column.sort_key(report, row), "", css)
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
    return Head(column.header, column.hint, first, column.unit != "text", column.over)


def grid(table: Table[Any], report: Report) -> Grid:
    """A table as the template shows it."""
    columns = table.columns_of("page")
    heads: list[Head] = []
    for _, each in groupby(map(head, columns), key=lambda each: each.over):
        first, *others = each
        heads += [replace(first, span=1 + len(others)), *others]
    rows = [[cell(column, report, row) for column in columns] for row in table.rows(report)]
    css = f"sortable {table.name}" if any(column.better for column in columns) else table.name
    return Grid(table.title, css, heads, rows)


def shown(blocks: Sequence[Block], report: Report) -> list[tuple[str, Any]]:
    """Kind and data of each block, as the template reads them."""
    found: list[tuple[str, Any]] = []
    for block in blocks:
        if isinstance(block, Table):
            found.append(("grid", grid(block, report)))
        elif isinstance(block, Fold | Part):
            found.append((type(block).__name__.lower(), (block, shown(block.blocks, report))))
        else:
            found.append((type(block).__name__.lower(), block))
    return found


def table_blocks(table: Table[Any], report: Report) -> list[Block]:
    """A table with what stands above it; none without any of these."""
    rows = table.rows(report) if table.shows_rows and table.columns_of("page") else ()
    above: list[Block] = [*map(Text, table.notes(report)), *charts(table.figures(report))]
    if not rows and not above:
        return []
    blocks: list[Block] = [Text(table.intro)] if table.intro else []
    blocks += above
    if rows and table.fold:
        summary = counted(len(rows), table.fold)
        blocks.append(Fold(summary, [table], is_open=len(rows) <= OPEN_ROWS))
    elif rows:
        blocks.append(table)
    return blocks


def table_section(table: Table[Any]) -> Section:
    """The section of a table that has a place on the page."""
    assert table.order is not None
    return Section(
        table.anchor or table.name,
        table.title,
        table.order,
        lambda report: table_blocks(table, report),
        BLOCKS,
    )
