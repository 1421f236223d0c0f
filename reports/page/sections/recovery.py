"""The leaderboard: one table of all checkpoints, filtered in place by protocol and benchmarks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from evalsuite.foundation import counted
from evalsuite.reports import formatting
from evalsuite.reports.analysis.averages import order
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.analysis.rows import AverageRow
from evalsuite.reports.analysis.scopes import INFORMATIVE
from evalsuite.reports.figures.axes import Axis, nice_axis
from evalsuite.reports.figures.figure import script_json
from evalsuite.reports.measures.leaderboard import Entry, columns_of
from evalsuite.reports.measures.pairs import replicate_sentences
from evalsuite.reports.page.benchmark_cells import BenchmarkCell, BenchmarkColumn, benchmark_columns
from evalsuite.reports.page.tables import Cell, Head, cell, head
from evalsuite.reports.report import Report
from evalsuite.reports.run import Benchmark
from evalsuite.reports.section import section
from evalsuite.reports.table import Column

SHORT = 60
"""Recovery axes that would span more points than this start at 0."""
SCOPES = {INFORMATIVE: "Informative", **formatting.CATEGORY_TITLES}
"""Filters of the table and their titles."""
LEADING = ("chance_normalized_recovery", "agreement", "retained")
"""Columns next to recovery; the others that are declared for the page follow."""


Entries = Mapping[tuple[int, str, str], Entry]
"""Checkpoint, protocol and scope → the row of the leaderboard; students only."""


def summary_columns(report: Report, entries: Entries) -> list[Column[Entry]]:
    """The declared columns of the page that have values, first recovery over the chosen benchmarks."""
    declared = {
        name: column
        for name, column in columns_of(report, "page").items()
        if name in ("recovery", *LEADING)
        or any(column.sort_key(report, entry) is not None for entry in entries.values())
    }
    recovery = replace(
        declared.pop("recovery"),
        title="recovery",
        hint="Student ÷ teacher, ratio of macro averages over the chosen benchmarks.",
        with_interval=True,
    )
    declared.pop("informative_recovery", None)  # A filter of the page, which needs no column.
    return [recovery, *(declared.pop(name) for name in LEADING), *declared.values()]


@dataclass(frozen=True, slots=True)
class Line:
    """One checkpoint in one view."""

    rank: Cell
    about: str
    summaries: tuple[Cell, ...]
    mark: tuple[float, float, float] | None
    """Position of the recovery interval on the axis, in percent: low, point, high."""


@dataclass(frozen=True, slots=True)
class View:
    """One protocol and scope."""

    protocol: str
    scope: str
    caption: str
    sentences: tuple[str, ...]
    """About runs of one recipe."""
    columns: tuple[int, ...]
    """Indices of the benchmark columns that belong to it."""
    ticks: tuple[tuple[float, str], ...]
    """Position in percent and label."""
    reference: float | None
    """Position of the teacher's 100 %."""
    lines: Mapping[int, Line]
    """By checkpoint; absent ones are hidden."""

    @property
    def key(self) -> str:
        """Protocol and scope."""
        return f"{self.protocol}|{self.scope}"


@dataclass(frozen=True, slots=True)
class Row:
    """One checkpoint with its cells in all benchmark columns."""

    checkpoint: int
    label: str
    cells: tuple[BenchmarkCell, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A teacher (None for checkpoints without one) with its students, best first."""

    teacher: Row | None
    students: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """The section."""

    groups: tuple[Group, ...]
    columns: tuple[BenchmarkColumn, ...]
    summaries: tuple[Head, ...]
    """The columns before the benchmarks."""
    views: tuple[View, ...]
    first: View
    hidden: tuple[int, ...]
    """Benchmark columns that the first view does not show."""
    data: Markup
    """The views as JSON."""
    protocols: tuple[str, ...]
    scopes: tuple[tuple[str, str], ...]
    """Filters of benchmarks and their titles; empty if there is only one."""
    diverged: tuple[str, ...]
    """A sentence per student without a checkpoint."""
    uninformative: tuple[str, ...]
    """Sentences about the benchmarks left out of the informative ones."""


@section("recovery", "What the students retain", order=20, template="sections/recovery.html.j2")
def board(report: Report) -> Board | None:
    """The leaderboard; None without any score."""
    columns = benchmark_columns(report)
    entries = {
        (row.checkpoint, row.protocol, row.scope): entry
        for row in report.averages
        if (entry := Entry.of(report, row)).is_student
    }
    summaries = summary_columns(report, entries)
    views = [
        view
        for protocol in report.protocols
        for scope in SCOPES
        if (view := _view(report, (protocol, scope), columns, summaries, entries)) is not None
    ]
    if not views:
        return None
    scopes = dict.fromkeys(view.scope for view in views)
    return Board(
        groups=tuple(_groups(report, columns, views[0])),
        columns=tuple(columns),
        summaries=tuple(head(column) for column in summaries),
        views=tuple(views),
        first=views[0],
        hidden=tuple(at for at in range(len(columns)) if at not in views[0].columns),
        data=script_json({view.key: _packed(view) for view in views}),
        protocols=report.protocols,
        scopes=tuple((name, SCOPES[name]) for name in SCOPES if name in scopes) if len(scopes) > 1 else (),
        diverged=tuple(f"{each.label} {each.why}." for each in report.tensor.merged.diverged),
        uninformative=tuple(_uninformative(report)),
    )


def _packed(view: View) -> dict[str, Any]:
    return {
        "caption": view.caption,
        "sentences": view.sentences,
        "columns": view.columns,
        "ticks": view.ticks,
        "reference": view.reference,
        "lines": {
            checkpoint: [
                line.rank.packed(),
                line.about,
                [summary.packed() for summary in line.summaries],
                line.mark,
            ]
            for checkpoint, line in view.lines.items()
        },
    }


def _groups(report: Report, columns: Sequence[BenchmarkColumn], first: View) -> list[Group]:
    def row(checkpoint: int) -> Row:
        cells = tuple(column.cell(checkpoint) for column in columns)
        return Row(checkpoint, report.checkpoints[checkpoint].label, cells)

    averages = {
        each.checkpoint: each
        for each in report.averages
        if (each.protocol, each.scope) == (first.protocol, first.scope)
    }
    groups = []
    for teacher in report.teachers:
        students = report.students(teacher)
        best = [each.checkpoint for each in order([averages[s] for s in students if s in averages])]
        in_order = [*best, *(s for s in students if s not in averages)]
        groups.append(Group(row(teacher), tuple(row(s) for s in in_order)))
    alone = [i for i, each in enumerate(report.checkpoints) if each.teacher is None and not each.is_teacher]
    return [*groups, Group(None, tuple(row(i) for i in alone))] if alone else groups


def _view(
    report: Report,
    place: tuple[str, str],
    columns: Sequence[BenchmarkColumn],
    summaries: Sequence[Column[Entry]],
    entries: Entries,
) -> View | None:
    protocol, scope = place
    shown = [i for i, column in enumerate(columns) if column.is_in(protocol, scope)]
    if not shown:
        return None
    averages = {
        each.checkpoint: each for each in report.averages if (each.protocol, each.scope) == (protocol, scope)
    }
    axis = _axis(list(averages.values()))
    there = [
        i
        for i in range(len(report.checkpoints))
        if i in averages or any(columns[at].cell(i).is_measured for at in shown)
    ]
    return View(
        protocol=protocol,
        scope=scope,
        caption=_caption(report, [columns[at].benchmark for at in shown], protocol, scope),
        sentences=tuple(replicate_sentences(report, protocol, scope)),
        columns=tuple(shown),
        ticks=_ticks(axis),
        reference=None if axis is None else axis.at(100.0),
        lines={
            i: _line(report, i, averages.get(i), entries.get((i, *place)), summaries, axis) for i in there
        },
    )


def _axis(rows: Sequence[AverageRow]) -> Axis | None:
    intervals = [row.recovery.interval for row in rows if row.recovery.interval is not None]
    if not intervals:
        return None
    ends = [100 * end for interval in intervals for end in (interval.low, interval.high)]
    include = [100.0] if max(ends) - min(ends) < SHORT and min(ends) > 100 - SHORT else [0.0, 100.0]
    return nice_axis(ends, include=include, steps=6)


def _ticks(axis: Axis | None, most: int = 4) -> tuple[tuple[float, str], ...]:
    """Labeled ticks, thinned to about `most`; 100 keeps its label."""
    if axis is None:
        return ()
    stride = -(-len(axis.ticks) // most)
    start = axis.ticks.index(100.0) % stride if 100.0 in axis.ticks else 0
    return tuple((axis.at(tick), f"{tick:g}") for tick in axis.ticks[start::stride])


def _line(
    report: Report,
    checkpoint: int,
    average: AverageRow | None,
    entry: Entry | None,
    columns: Sequence[Column[Entry]],
    axis: Axis | None,
) -> Line:
    described = report.checkpoints[checkpoint]
    lineage = lineage_of(described)
    about = [lineage.describe_mixers(), formatting.parameters(described.parameters)]
    if not lineage.complete and lineage.tokens:
        about.append(f"after {formatting.tokens(lineage.tokens)} tokens")
    if average and average.missing:
        about.append(f"incomplete, no rank: missing {formatting.some(average.missing)}")
    if entry is None:
        reference = "100" if report.checkpoints[checkpoint].is_teacher else formatting.NOTHING
        summaries = [Cell(reference), *(Cell("") for _ in columns[1:])]
    else:
        summaries = [cell(column, report, entry) for column in columns]
    interval = average.recovery.interval if average else None
    mark = None
    if interval is not None and axis is not None:
        mark = axis.at(100 * interval.low), axis.at(100 * interval.point), axis.at(100 * interval.high)
    rank = Cell(formatting.rank(average), sort=average.rank) if average else Cell("")
    return Line(rank, " · ".join(part for part in about if part), tuple(summaries), mark)


def _uninformative(report: Report) -> list[str]:
    """Which benchmarks are not informative, by teacher, protocol and reason."""
    titles = {benchmark.name: benchmark.title for benchmark in report.benchmarks}
    found: dict[tuple[int, str, str], list[str]] = {}
    for row in report.informative:
        if not row.is_informative:
            found.setdefault((row.teacher, row.protocol, row.why), []).append(titles[row.benchmark])
    return [
        f"{', '.join(names)} ({formatting.PROTOCOL_TITLES[protocol]}"
        + (f", {report.checkpoints[teacher].label}" if len(report.teachers) > 1 else "")
        + f"): {why}."
        for (teacher, protocol, why), names in found.items()
    ]


def _caption(report: Report, benchmarks: Sequence[Benchmark], protocol: str, scope: str) -> str:
    compared = [b for b in benchmarks if b.protocols[protocol].direction == "higher"]  # type: ignore[index]
    titles = {b.name: b.title for b in compared}
    cells = [c for c in report.tensor.cells if c.protocol == protocol and c.benchmark.name in titles]
    counting = report.tensor.counting
    merged = counting.benchmarks(cells)
    compared = [b for b in compared if b.name not in merged]
    cells = [cells[i] for i in counting.once(cells)]
    documents = sum({cell.key: len(cell.documents) for cell in cells}.values())
    partial = dict.fromkeys(
        f"{cell.benchmark.title} {formatting.coverage(len(cell.documents), cell.planned)}"
        for cell in cells
        if len(cell.documents) < cell.planned
    )
    if not compared:
        return "Log-perplexities and their change from the teacher, in nats. They do not enter recovery."
    what = "one benchmark" if len(compared) == 1 else f"{len(compared)} benchmarks"
    if scope == INFORMATIVE:
        what = what.replace("benchmark", "informative benchmark")
    groups = {b.group for b in compared if b.group}
    units = len({b.group or b.name for b in compared})
    by_size = any(b.group_weight for b in compared)
    weights = "" if len(compared) == 1 else ", weighted equally"
    if by_size and units == 1:
        weights = ", weighted by their documents"
    elif groups and units > 1:
        within = ", its parts weighted by their documents" if by_size else ""
        weights += f" ({' and '.join(sorted(groups))} counts as one{within})"
    return (
        f"Student score ÷ teacher score under {formatting.PROTOCOL_TITLES[protocol]}, on the same "
        f"{counted(documents, 'document')} of {what}{weights}. Bars are 95 % intervals from a paired "
        "bootstrap over documents (or their clusters). Changes are coloured if they are proven after Holm's "
        "correction over all students and benchmarks."
        + "".join(
            f" {titles[name]} has requests of {titles[other]}, and counts with it."
            for name, other in merged.items()
        )
        + (f" Compared on a part of the planned documents: {', '.join(partial)}." if partial else "")
    )
