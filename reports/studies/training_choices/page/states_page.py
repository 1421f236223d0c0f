"""Writes the page of a study of state sizes: percentage right by bytes of state, on each benchmark alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import inf
from pathlib import Path
from types import MappingProxyType

from evalsuite.foundation import DataError, write_text
from evalsuite.foundation.taxonomy import PROTOCOL_TITLES, PROTOCOLS
from evalsuite.reports import formatting
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.blocks import Block, Charts, Part, Text, Texts
from evalsuite.reports.figures.figure import Figure, Values
from evalsuite.reports.figures.plots import Axis, Curve, Point, curves
from evalsuite.reports.page.standalone import standalone_page
from evalsuite.reports.studies.training_choices.analysis.states import END, StateSlope, state_slopes
from evalsuite.reports.studies.training_choices.design import BASE, TEACHER
from evalsuite.reports.studies.training_choices.page.effects_page import counts_sentence, runs_section
from evalsuite.reports.studies.training_choices.page.reading import StudyData
from evalsuite.reports.studies.training_choices.page.tables import (
    Table,
    runs_table,
    teacher_table,
    with_interval,
    write_tables,
)

CHARTS = "states.html"
STATE = (
    "State: what all layers of a student hold of one sequence, whatever its length, in bfloat16 with "
    "recurrent states in float32."
)


def write_states_page(data: StudyData, out: Path, refused: Mapping[str, str] = MappingProxyType({})) -> Path:
    """Write ``README.md``, ``states.html`` and a CSV file per table; return the page.

    Args:
        refused: title of a benchmark that is not admitted to averages → why.

    Raises:
        DataError: the study has several axes, or a student has no state of one known size.
    """
    if len(data.axes) != 1:
        raise DataError(
            f"{data.title}: has {len(data.axes)} axes ({', '.join(data.axes)}); a line "
            "by the size of states needs one axis, whose arms differ in that size"
        )
    states = state_bytes(data)
    slopes = state_slopes(data.scores, states)
    notes = limits(data, slopes, refused)
    tables = write_tables(
        out,
        teacher_table(data),
        slopes_table(data, slopes),
        sizes_table(data, states),
        state_runs_table(data, states),
    )
    write_text(out / CHARTS, _charts(data, tables, slopes, notes))
    page = out / "README.md"
    write_text(page, _page(data, tables, slopes, notes))
    return page


def state_bytes(data: StudyData) -> dict[str, int]:
    """Finished run → bytes of state of its student.

    Raises:
        DataError: unknown, or there are softmax layers, whose cache grows with the context.
    """
    found = {}
    for run in data.scores.runs:
        if data.scores.has(run):
            lineage = lineage_of(data.checkpoints[run.name])
            if not lineage.state_bytes or lineage.softmax_layers:
                why = "has softmax layers" if lineage.softmax_layers else "states no bytes of state"
                raise DataError(
                    f"{run.name}: {why}; a line by the size of states needs students whose run states the "
                    "bytes of all layers (`state_bytes` of the lineage) and whose layers are all recurrent"
                )
            found[run.name] = lineage.state_bytes
    return found


def slopes_table(data: StudyData, slopes: Sequence[StateSlope]) -> Table:
    """The line of every student on every benchmark under both protocols."""
    rows = [
        (
            each.student,
            data.titles[each.benchmark],
            PROTOCOL_TITLES[each.protocol],
            str(len(each.points)),
            with_interval(each.slope),
            formatting.percent(each.misfit),
            str(each.at_floor),
            str(each.at_ceiling),
            each.trend,
        )
        for each in slopes
    ]
    ends = ("runs at the floor", "runs at the ceiling")
    columns = (
        "student",
        "benchmark",
        "protocol",
        "runs",
        "points per doubling",
        "misfit",
        *ends,
        "as states grow",
    )
    return Table("slopes", columns, tuple(rows))


def sizes_table(data: StudyData, states: Mapping[str, int]) -> Table:
    """State and parameters of every student and arm, and the scores of its finished runs; growing states."""
    ((choice, axis),), scores = data.axes.items(), data.scores
    masks = [scores.benchmarks == index for index in range(len(scores.names))]
    planned = Counter((run.student, run.arm) for run in scores.runs)
    rows = []
    for (student, arm), count in planned.items():
        runs = scores.of(student, arm)
        size = states[runs[0].name] if runs else None
        parameters = data.checkpoints[runs[0].name].parameters if runs else None
        row = (
            student,
            axis.base if arm == BASE else arm,
            *(formatting.NOTHING if each is None else f"{each:,}" for each in (size, parameters)),
            f"{len(runs)} of {count}",
            *(
                ", ".join(formatting.percent(scores.values[p][run.name][here].mean()) for run in runs)
                or formatting.NOTHING
                for here in masks
                for p in PROTOCOLS
            ),
        )
        rows.append((size or inf, row))
    students = [student for student, _ in planned]
    rows.sort(key=lambda each: (students.index(each[1][0]), each[0]))
    scored = (f"{data.titles[n]}, {PROTOCOL_TITLES[p]}" for n in scores.names for p in PROTOCOLS)
    columns = ("student", choice, "bytes of state", "parameters", "runs", *scored)
    return Table("sizes", columns, tuple(row for _, row in rows))


def state_runs_table(data: StudyData, states: Mapping[str, int]) -> Table:
    """`runs_table` with bytes of state and parameters of every run; the teacher's state grows."""
    table = runs_table(data)
    rows = (
        (*row, str(states.get(row[0], "")), str(data.checkpoints[row[0]].parameters or ""))
        for row in table.rows
    )
    return replace(table, columns=(*table.columns, "bytes of state", "parameters"), rows=tuple(rows))


def trend_sentences(data: StudyData, slopes: Sequence[StateSlope]) -> list[str]:
    """What each protocol of each benchmark does as states grow: one sentence each."""
    found = []
    for (benchmark, protocol), group in _cells(slopes):
        by_trend: dict[str, list[str]] = {}
        for each in group:
            by_trend.setdefault(each.trend, []).append(f"{each.student} {with_interval(each.slope)}")
        trends = "; ".join(f"{trend}: {', '.join(names)}" for trend, names in by_trend.items())
        found.append(f"{data.titles[benchmark]}, {PROTOCOL_TITLES[protocol]}, points per doubling: {trends}.")
    return found


def limits(data: StudyData, slopes: Sequence[StateSlope], refused: Mapping[str, str]) -> list[str]:
    """What the slopes do not show."""
    students = [data.checkpoints[run.name].parameters for run in data.scores.runs if data.scores.has(run)]
    known = [count for count in students if count is not None]
    span = f" (here from {min(known):,} to {max(known):,})" if known else ""
    teacher = data.checkpoints[TEACHER].parameters
    of = f" of {teacher:,} parameters" if teacher else ""
    found = [f"{title} counts in no average: {why}." for title, why in refused.items()]
    found += [
        f"Students with other states also have other parameters{span}, so that a slope is not the effect "
        "of the state alone.",
        "Percentages are bounded, so that a line is a local summary of these sizes. Runs at the floor "
        f"(at most {100 * END:.0f} point above chance) or at the ceiling ({100 - 100 * END:.0f} % or more) "
        "flatten it: a slope of 0 there does not mean that states of any size suffice.",
        f"One teacher{of}, one recipe, equal tokens for all sizes: a student that has not learned a "
        "benchmark in them does not show what its state could hold.",
    ]
    if slopes:
        found.append(
            f"Intervals cover {slopes[0].slope.method}: the variance between runs that differ in their seed "
            "alone, pooled over students and sizes with two runs or more, and that of documents. How far the "
            f"line misses the means of the sizes is not in them. Each of the {len(slopes)} holds at 95 % by "
            "itself."
        )
    return found


def _cells(slopes: Sequence[StateSlope]) -> "groupby[tuple[str, str], StateSlope]":
    """Slopes by benchmark and protocol."""
    return groupby(slopes, key=lambda each: (each.benchmark, each.protocol))


def _figures(data: StudyData, slopes: Sequence[StateSlope]) -> list[Figure]:
    """One chart per benchmark and protocol: a point per run, a line per student, and the teacher's level."""
    found = []
    for (benchmark, protocol), group in _cells(slopes):
        own = list(group)
        here = data.scores.benchmarks == data.scores.names.index(benchmark)
        sizes = sorted({size for each in own for size, _ in each.points})
        level, chance = (
            100 * float(values[here].mean())
            for values in (data.scores.values[protocol][TEACHER], data.scores.chance[protocol])
        )
        found.append(
            curves(
                [*map(_curve, own), Curve("teacher", (), line=((sizes[0], level), (sizes[-1], level)))],
                Axis("state", ticks=[(size, formatting.bytes_(size)) for size in sizes], is_log=True),
                Axis("right", suffix=" %", low=0),
                title=f"{data.titles[benchmark]}, {PROTOCOL_TITLES[protocol]}",
                caption=f"Teacher {level:.1f} %, chance {chance:.1f} %.",
            )
        )
    return found


def _curve(slope: StateSlope) -> Curve:
    label = "{}, {:,} bytes: {:.1f} %".format
    return Curve(
        slope.student,
        tuple(Point(size, 100 * y, label=label(slope.student, size, 100 * y)) for size, y in slope.points),
        line=tuple((size, 100 * y) for size, y in slope.line),
    )


def _charts(
    data: StudyData, tables: Mapping[str, Table], slopes: Sequence[StateSlope], notes: Sequence[str]
) -> str:
    lead = "A point is one run; a line is fitted over the runs of a student (least squares)."
    shown = {"slopes": "Points per doubling of the state", "sizes": "Percentage right of each finished run"}
    blocks: list[Block] = [
        Text(f"{counts_sentence(data)} {lead} {STATE}"),
        Charts(_figures(data, slopes)),
        *(
            Part(title, [Texts(Values(tables[name].columns, tables[name].rows), title)])
            for name, title in shown.items()
        ),
        Part("What it does not show", [*map(Text, notes)]),
    ]
    return standalone_page(_title(data), blocks, source="slopes.csv and runs.csv")


def _title(data: StudyData) -> str:
    return f"{data.title}: percentage right by size of the state"


def _page(
    data: StudyData, tables: Mapping[str, Table], slopes: Sequence[StateSlope], notes: Sequence[str]
) -> str:
    sections = [
        f"# {_title(data)}",
        "\n".join(f"- {each}" for each in trend_sentences(data, slopes))
        or "Too few runs are finished for an interval over runs.",
        f"{counts_sentence(data)} [Charts]({CHARTS}): a point per run, a line per student.",
        "## Teacher",
        tables["teacher"].markdown(),
        "## Slopes",
        "Least squares of the percentage on log₂ of the bytes of state, over the runs of a student. "
        "*Misfit*: root mean square distance of the runs from the line, in points. A trend is "
        "decided where the 95 % interval does not contain 0.",
        tables["slopes"].markdown(),
        "## Sizes",
        f"{STATE} Percentage right of each finished run:",
        tables["sizes"].markdown(),
        "## What it does not show",
        "\n".join(f"- {each}" for each in notes),
        "## Runs",
        runs_section(data),
    ]
    return "\n\n".join(sections) + "\n"
