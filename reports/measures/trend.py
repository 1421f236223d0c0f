"""Trend: students of one label in several runs, such as a nightly build's, in the order of dates."""

from dataclasses import dataclass
from itertools import pairwise

from evalsuite.reports import formatting
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.report import Report
from evalsuite.reports.table import CSV, Column, Table, Value, label_of, percentage


@dataclass(frozen=True, slots=True)
class Point:
    """A student of a label under one protocol."""

    series: str
    """The label that its run gave it."""
    checkpoint: int
    protocol: str
    run: int
    """The first that has it."""
    before: int | None
    """The checkpoint of the label that precedes it; None for the first."""


def trend(report: Report) -> list[Point]:
    """The students whose labels name other weights in runs of other dates."""
    merged = report.tensor.merged
    series: dict[str, list[int]] = {}
    for index, entry in enumerate(report.checkpoints):
        if not entry.is_teacher:
            series.setdefault(entry.label_in_run, []).append(index)

    def date(checkpoint: int) -> str:
        return merged.plans[_first_run(report, checkpoint)].created

    return [
        Point(label, checkpoint, protocol, _first_run(report, checkpoint), before)
        for label, found in series.items()
        if len({date(each) for each in found}) == len(found) > 1
        for protocol in report.protocols
        for before, checkpoint in pairwise([None, *sorted(found, key=date)])
        if checkpoint is not None
    ]


def _first_run(report: Report, checkpoint: int) -> int:
    plans = report.tensor.merged.plans
    return min(report.checkpoints[checkpoint].runs, key=lambda run: plans[run].created)


def _recovery(report: Report, row: Point) -> Value:
    found = report.leading_average(row.checkpoint, row.protocol)
    return found.recovery if found else None


def _change(report: Report, row: Point) -> Value:
    ends = [
        found.recovery.interval
        for each in (row.before, row.checkpoint)
        if each is not None and (found := report.leading_average(each, row.protocol))
    ]
    if len(ends) < 2 or ends[0] is None or ends[1] is None:
        return None
    return ends[1].point - ends[0].point


def _unchanged(report: Report) -> list[str]:
    """That students with equal weights in several runs are one row."""
    names = [each.label for each in report.checkpoints if len(each.runs) > 1 and not each.is_teacher]
    if not names:
        return []
    return [f"Equal weights in several runs, whose scores are one row: {', '.join(names)}."]


TREND: Table[Point] = Table(
    name="trend",
    title="Trend over runs",
    rows=trend,
    columns=(
        Column("series", "label", unit="text"),
        Column("label", value=lambda report, row: label_of(report, row.checkpoint), unit="text", outputs=CSV),
        Column(
            "protocol",
            unit="text",
            show=lambda report, row: formatting.PROTOCOL_TITLES[row.protocol],
        ),
        Column(
            "created",
            "date",
            value=lambda report, row: report.tensor.merged.plans[row.run].created,
            show=lambda report, row: report.tensor.merged.plans[row.run].created[:10],
            unit="text",
        ),
        Column("run", value=lambda report, row: report.tensor.merged.runs[row.run].name, unit="text"),
        percentage("recovery", value=_recovery),
        Column(
            "change",
            hint="Of recovery since the run before, without a test: the gate's `regression` makes one, on "
            "equal documents.",
            value=_change,
            unit="points",
        ),
    ),
    json_rows=lambda report: TREND.cells(report),
    order=22,
    notes=_unchanged,
    intro="Students of one label whose weights differ from run to run, the oldest run first.",
    fold="row",
)
MEASURES.add("trend", Measure(tables=(TREND,)))
