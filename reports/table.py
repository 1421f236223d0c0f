"""Tables, each declared once: page, CSV, JSON, Markdown, terminal and DataFrames read the declaration.

    TABLE = Table(
        name="lost",
        title="Proven losses",
        rows=lambda report: [row for row in report.drops if row.kind == "loss"],
        columns=(
            label_column(),
            Column("benchmark", unit="text"),
            Column("drop", kind="interval", unit="points", hint="Teacher − student."),
        ),
        order=25,
    )

`measure.py` registers tables; docs/extend/measure.md shows one of another package.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from evalsuite.reports import formatting, markdown
from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.figures.figure import Figure
from evalsuite.reports.json_values import to_json
from evalsuite.reports.report import Report
from evalsuite.reports.statistics.intervals import Interval

if TYPE_CHECKING:
    import pandas as pd

Row = TypeVar("Row")
Value = Estimate | Interval | float | int | str | None
"""An estimate or interval, a number, or a text; None where the column does not apply."""
ALONE = cast(Report, None)
"""The report of rows that belong to none, such as measurements of efficiency: columns read rows alone."""
Output = Literal["csv", "page", "markdown", "terminal"]
EVERYWHERE: tuple[Output, ...] = ("csv", "page", "markdown", "terminal")
TABLES: tuple[Output, ...] = ("page", "markdown", "terminal")
CSV: tuple[Output, ...] = ("csv",)
PAGE: tuple[Output, ...] = ("page",)


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column: what it shows, how, and where."""

    name: str
    """In a CSV and a DataFrame; unique in its table."""
    title: str = ""
    """Header on the page and in text, without the unit; default: the name in words."""
    hint: str = ""
    """One sentence that explains it."""
    value: Callable[[Report, Row], Value] | None = None
    """The value of a row; None: its attribute `name`."""
    kind: Literal["estimate", "interval", "value"] = "value"
    """What `value` returns where it is not None: an `Estimate`, an `Interval`, or a number or text. In a CSV
    an interval has three cells, an estimate a fourth with the reason why it is undefined."""
    unit: Literal["percent", "points", "number", "text"] = "number"
    """`percent` and `points` are stored as fractions and shown times 100; points have a sign."""
    better: Literal["higher", "lower"] | None = None
    """Direction of sorting, the best first; None: the column of a page is not sorted by it."""
    outputs: tuple[Output, ...] = EVERYWHERE
    with_interval: bool = True
    """Whether tables show the interval next to the point."""
    per_protocol: bool = False
    """Whether a table of both protocols has one such column each."""
    digits: int = 1
    note: Callable[[Report, Row], str] = lambda report, row: ""
    """What a reader must know about a cell, shown on hover; tables mark the cell with †."""
    show: Callable[[Report, Row], str] | None = None
    """The text of a cell, where value, unit and digits do not give it."""
    css: Callable[[Report, Row], str] | None = None
    """Class of a cell of the page: `loss`, `gain`, `tie`, `muted`, `strong` or `track`."""
    about: Callable[[Report, Row], str] | None = None
    """Smaller text below a cell of the page."""
    over: str = ""
    """Heading of neighboring columns, such as the protocol."""

    @property
    def header(self) -> str:
        """The title with its unit."""
        title = self.title or self.name.replace("_", " ")
        return {"percent": f"{title} %", "points": f"{title}, points"}.get(self.unit, title)

    @property
    def full_header(self) -> str:
        """The header with the heading of its neighbors."""
        return f"{self.header}, {self.over}" if self.over else self.header

    def of(self, report: Report, row: Row) -> Value:
        """The value of a row."""
        found: Value = getattr(row, self.name) if self.value is None else self.value(report, row)
        return found

    def text(self, report: Report, row: Row) -> str:
        """The cell of a table; a dash for None, and a mark where there is a note."""
        text = self._text(report, row) if self.show is None else self.show(report, row)
        return f"{text} †" if text != formatting.NOTHING and self.note(report, row) else text

    def _text(self, report: Report, row: Row) -> str:
        value = self.of(report, row)
        if isinstance(value, Estimate):
            value = value.interval
        if value is None or value == "":
            return formatting.NOTHING
        if isinstance(value, str):
            return value
        if isinstance(value, Interval):
            text = self._number(value.point)
            return (
                f"{text} ({formatting.span(value, self._scale, self.digits)})" if self.with_interval else text
            )
        return self._number(value)

    def sort_key(self, report: Report, row: Row) -> float | None:
        """The number to sort by; None comes last."""
        value = self.of(report, row)
        if isinstance(value, Estimate | Interval):
            return value.point
        return None if value is None or isinstance(value, str) else float(value)

    @property
    def cells(self) -> tuple[str, ...]:
        """Names of its cells in a CSV."""
        ends = {"value": (), "interval": ("_low", "_high"), "estimate": ("_low", "_high", "_undefined")}
        return (self.name, *(self.name + end for end in ends[self.kind]))

    def csv(self, report: Report, row: Row) -> dict[str, float | str | None]:
        """Unrounded cells of a CSV, the same ones for every row."""
        value = self.of(report, row)
        if self.kind == "interval" and (value is None or isinstance(value, Interval)):
            return formatting.interval_cells(self.name, value)
        if self.kind == "estimate" and (value is None or isinstance(value, Estimate)):
            return formatting.estimate_cells(self.name, value)
        if self.kind != "value" or isinstance(value, Estimate | Interval):
            raise TypeError(f"column '{self.name}' is of kind '{self.kind}', its value {value!r} is not")
        return {self.name: value}

    @property
    def _scale(self) -> float:
        return 100.0 if self.unit in ("percent", "points") else 1.0

    def _number(self, value: float) -> str:
        if isinstance(value, int):
            return formatting.count(value)
        show = formatting.signed if self.unit == "points" else formatting.plain
        return show(self._scale * value, self.digits)


def percentage(name: str, title: str = "", hint: str = "", **how: Any) -> Column[Any]:
    """A column of estimates, fractions that tables show in percent."""
    return Column(name, title, hint, kind="estimate", unit="percent", **how)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table(Generic[Row]):
    """Rows of a report and how they are shown."""

    name: str
    """Its CSV is NAME.csv."""
    title: str
    """Heading on the page."""
    rows: Callable[[Report], Sequence[Row]]
    columns: Sequence[Column[Row]]
    json: str = ""
    """Name of its rows in report.json; default: the table's. A name that is taken ends in `_table`."""
    json_rows: Callable[[Report], Sequence[Any]] | None = None
    """What report.json lists; None: the rows."""
    is_always_written: bool = False
    """Whether its CSV is written without rows, too."""
    order: float | None = None
    """Position of its section on the page; None: the page has no section of the table alone."""
    anchor: str = ""
    """Id of its section; default: its name."""
    shows_rows: bool = True
    """Whether the section shows the table, or its notes and figures alone."""
    intro: str = ""
    """What a reader must know first."""
    notes: Callable[[Report], Sequence[str]] = lambda report: ()
    """Sentences above the table."""
    figures: Callable[[Report], Sequence[Figure]] = lambda report: ()
    """Figures above the table."""
    fold: str = ""
    """What a row is: the page shows the number of rows, and folds a long table; empty: never folded."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w+", self.name):
            raise ValueError(
                f"table '{self.name}': the name of a file has letters, digits and underscores only"
            )
        names = [name for column in self.columns for name in column.cells]
        twice = dict.fromkeys(name for name in names if names.count(name) > 1)
        if twice:
            raise ValueError(f"table '{self.name}' has two columns '{next(iter(twice))}'")

    def column(self, name: str) -> Column[Row]:
        """The column of a name."""
        return next(column for column in self.columns if column.name == name)

    def columns_of(self, output: Output) -> list[Column[Row]]:
        """The columns of an output, in order."""
        return [column for column in self.columns if output in column.outputs]

    def of(self, rows: Sequence[Row]) -> "Table[Row]":
        """The table with these rows alone."""
        return replace(self, rows=lambda report: rows)

    def is_written(self, report: Report) -> bool:
        """Whether the report has its CSV."""
        return self.is_always_written or bool(self.rows(report))

    def check(self, report: Report) -> None:
        """Compute every cell of every output, whatever that raises."""
        for row in self.rows(report):
            for column in self.columns:
                if "csv" in column.outputs:
                    column.csv(report, row)
                column.text(report, row)
                for more in (column.css, column.about):
                    if more is not None:
                        more(report, row)
                if column.better is not None:
                    column.sort_key(report, row)

    def csv(self, report: Report) -> str:
        """The table as CSV, unrounded; empty without rows."""
        return csv_text(self.cells(report))

    def cells(self, report: Report) -> list[dict[str, Any]]:
        """Name of a cell of the CSV → its value, for every row."""
        columns = self.columns_of("csv")
        return [
            {name: cell for column in columns for name, cell in column.csv(report, row).items()}
            for row in self.rows(report)
        ]

    def markdown(self, report: Report) -> str:
        """The table as Markdown, the first column in bold."""
        header, *lines = self._texts(report, "markdown")
        return markdown.table(header, [[f"**{name}**", *cells] for name, *cells in lines])

    def terminal(self, report: Report) -> str:
        """The table as aligned text."""
        return aligned(self._texts(report, "terminal"))

    def _texts(self, report: Report, output: Output) -> list[list[str]]:
        """Header and cells."""
        columns = self.columns_of(output)
        escape = markdown.escape if output == "markdown" else str
        lines = [[escape(column.text(report, row)) for column in columns] for row in self.rows(report)]
        return [[column.full_header for column in columns], *lines]

    def frame(self, report: Report) -> "pd.DataFrame":
        """The table as a DataFrame with the columns of the CSV; None where a text does not apply."""
        import pandas as pd

        cells = self.cells(report)
        names = [name for column in self.columns_of("csv") for name in column.cells]
        return pd.DataFrame(cells, columns=names if cells else None)

    def to_json(self, report: Report) -> list[Any]:
        """The rows as JSON values."""
        return [to_json(row) for row in (self.json_rows or self.rows)(report)]


def label_of(report: Report, checkpoint: int | None) -> str | None:
    """Label of a checkpoint."""
    return None if checkpoint is None else report.checkpoints[checkpoint].label


def teacher_of(report: Report, checkpoint: int) -> str | None:
    """Label of a checkpoint's teacher."""
    return label_of(report, report.checkpoints[checkpoint].teacher)


def label_column(title: str = "model", **how: Any) -> Column[Any]:
    """The label of a row's `checkpoint`."""
    return Column(
        "label", title, value=lambda report, row: label_of(report, row.checkpoint), unit="text", **how
    )


def weights_column() -> Column[Any]:
    """The weights_id of a row's `checkpoint`."""
    return Column(
        "weights_id",
        value=lambda report, row: report.checkpoints[row.checkpoint].weights_id,
        unit="text",
        outputs=CSV,
    )


def teacher_column() -> Column[Any]:
    """The label of the teacher of a row's `checkpoint`."""
    return Column(
        "teacher", value=lambda report, row: teacher_of(report, row.checkpoint), unit="text", outputs=CSV
    )


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Align rows of text: the first two columns to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def csv_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows with the columns of the first one as CSV; empty without rows."""
    rows = list(rows)
    if not rows:
        return ""
    buffer, lines = io.StringIO(newline=""), []
    # With this terminator csv quotes both characters that readers take for the end of a row.
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\r\n", restval="")
    for row in ({key: key for key in rows[0]}, *rows):
        writer.writerow({key: _safe(value) for key, value in row.items()})
        lines.append(buffer.getvalue().removesuffix("\r\n"))
        buffer.seek(0)
        buffer.truncate()
    return "\n".join([*lines, ""])


def _safe(value: Any) -> Any:
    """Quote text that a spreadsheet would evaluate as a formula; None becomes an empty cell."""
    if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return f"'{value}"
    return "" if value is None else value
