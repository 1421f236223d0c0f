"""Tuning: whether further training widens a student's distance from its teacher.

    change = (tuned teacher − tuned student) − (teacher − student)

of scores on the same documents, as before and after instruction tuning in arXiv 2504.14366, section 4.3
(regime A). A positive change is a gap that tuning amplifies.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from evalsuite.reports import formatting
from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample, Terms
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.report import Report, resampled
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.table import CSV, Column, Table, Value, label_of


@dataclass(frozen=True, slots=True)
class Tuning:
    """A student and what it became under one protocol, each next to its teacher; indices of checkpoints."""

    before: int
    after: int
    teacher_before: int
    teacher_after: int
    """The tuned teacher, or the same one if it was not tuned."""
    protocol: str
    documents: int
    drop_before: Interval
    """Teacher − student; scores are fractions."""
    drop_after: Interval
    change: Interval


def tunings(report: Report) -> list[Tuning]:
    """All checkpoints whose training started from a student of the report, under every protocol."""
    return [
        row
        for after in range(len(report.checkpoints))
        if (before := _start(report, after)) is not None
        for protocol in report.protocols
        if (row := _tuning(report, before, after, protocol)) is not None
    ]


def _start(report: Report, checkpoint: int) -> int | None:
    """The checkpoint of the report from which another one's training started."""
    parent = lineage_of(report.checkpoints[checkpoint]).parent_id
    return next((i for i, each in enumerate(report.checkpoints) if parent in each.weights), None)


def _tuning(report: Report, before: int, after: int, protocol: str) -> Tuning | None:
    teacher = report.checkpoints[before].teacher
    # A named teacher can be what another checkpoint became: that one is no student of it.
    if teacher is None or teacher == after:
        return None
    tuned = _tuned_teacher(report, teacher, before, after)
    pool = report.of(resampled)[protocol]
    involved = {before, after, teacher, tuned}
    data = pool.of(pool.scope("tuning", range(len(pool.cells))), sorted(involved))
    if data is None:
        return None
    drop = {tuned: 1.0, after: -1.0}
    change: dict[int, float] = dict(drop)
    for checkpoint, sign in ((teacher, -1.0), (before, 1.0)):
        change[checkpoint] = change.get(checkpoint, 0.0) + sign
    return Tuning(
        before,
        after,
        teacher,
        tuned,
        protocol,
        data.documents,
        _interval(data, {teacher: 1.0, before: -1.0}),
        _interval(data, drop),
        _interval(data, {checkpoint: sign for checkpoint, sign in change.items() if sign}),
    )


def _tuned_teacher(report: Report, teacher: int, before: int, after: int) -> int:
    """What the teacher became by the recipe that tuned the student, else by any, else the teacher itself."""
    others = set(range(len(report.checkpoints))) - {before, after}
    found = [each for each in sorted(others) if _start(report, each) == teacher]
    recipe = lineage_of(report.checkpoints[after]).recipe_hash
    return min(
        found,
        key=lambda i: lineage_of(report.checkpoints[i]).recipe_hash != recipe,
        default=teacher,
    )


def _interval(data: BootstrapSample, terms: Terms) -> Interval:
    return data.contrast(terms).interval(method=data.method(terms))


def _label(name: str, report: Report, row: Tuning) -> Value:
    return label_of(report, getattr(row, name))


def _kind(report: Report, row: Tuning) -> str:
    change = row.change
    return "loss" if change.low > 0 else "gain" if change.high < 0 else "tie"


def _columns() -> Iterator[Column[Tuning]]:
    for name, title in (("before", "student"), ("after", "tuned")):
        yield Column(name, title, value=partial(_label, name), unit="text")
    for name in ("teacher_before", "teacher_after"):
        yield Column(name, value=partial(_label, name), unit="text", outputs=CSV)
    yield Column("protocol", unit="text", show=lambda report, row: formatting.PROTOCOL_TITLES[row.protocol])
    yield Column("documents", outputs=CSV)
    yield Column("drop_before", "behind its teacher", kind="interval", unit="points", better="lower")
    yield Column("drop_after", "after tuning", kind="interval", unit="points", better="lower")
    yield Column("change", kind="interval", unit="points", better="lower", css=_kind)


TUNING: Table[Tuning] = Table(
    name="tuning",
    title="Before and after tuning",
    rows=lambda report: report.of(tunings),
    columns=tuple(_columns()),
    order=69,
    intro=(
        "How many points a student is behind its teacher, before and after further training of the student, "
        "and of the teacher where a tuned one is among the models; macro averages over the documents of all "
        "four. A positive change is a gap that tuning widens; its interval covers documents, not training "
        "runs."
    ),
)
MEASURES.add("tuning", Measure(tables=(TUNING,)))
