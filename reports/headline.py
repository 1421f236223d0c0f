"""The headline of a report: its main finding."""

from collections.abc import Sequence

from evalsuite.foundation import counted
from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports.analysis.rows import AverageRow, GapRow
from evalsuite.reports.analysis.scopes import ALL, INFORMATIVE
from evalsuite.reports.formatting import CATEGORY_TITLES, PROTOCOL_TITLES, best_student, percent
from evalsuite.reports.measures.agreement import agreement_with_teacher
from evalsuite.reports.measures.students import (
    BAR,
    NEEDLES,
    SHIPPED,
    StudentRow,
    policy_verdicts,
    student_rows,
)
from evalsuite.reports.report import Report


def headline(report: Report) -> str:
    """The student that one would ship, and what the best one by log-likelihood hides.

    Without two ways of measuring that can disagree, the sentence of the leaderboard.
    """
    rows = [row for row in report.of(student_rows) if row.worst_way]
    ways = {way for row in rows for way, share in row.shares.items() if share.point is not None}
    if len(ways) < 2:
        return recovery_sentence(report)
    first = next((row for row in rows if row.verdict in SHIPPED), rows[0])
    given = report.of(policy_verdicts)
    policy = "the default policy" if given is None else given.policy
    label = report.checkpoints[first.checkpoint].label
    kept = ", ".join(
        f"{percent(share.point)} % {_by(first, way)}"
        for way, share in first.shares.items()
        if share.point is not None
    )
    rest = f"{kept}{_hidden(report, rows, first)}.{_gained(report, first)}"
    if first.verdict == "keeps":
        return f"Ship {label}: of its teacher's lead it keeps {rest}"
    if first.verdict == "passes":
        return f"Ship {label}: it passes {policy}, and of its teacher's lead it keeps {rest}"
    least = f"{label} loses least{_not_apart(rows, first)}"
    if all(row.verdict == "loses" for row in rows):
        return (
            f"No student keeps {100 * BAR:g} % of its teacher's lead in every way. {least}: it keeps {rest}"
        )
    if all(row.verdict == "fails" for row in rows):
        return f"No student passes {policy}. {least}: of its teacher's lead it keeps {rest}"
    return f"{least}: of its teacher's lead it keeps {rest}"


def _not_apart(rows: Sequence[StudentRow], first: StudentRow) -> str:
    """Says how many others' lowest shares may be as high; empty if none by its interval, which proves it."""
    level = [
        row
        for row in rows
        if row is not first
        and row.worst.interval is not None
        and first.worst.interval is not None
        and row.worst.interval.high >= first.worst.interval.low
    ]
    theirs = "that" if len(level) == 1 else "those"
    return f", though its interval meets {theirs} of {counted(len(level), 'other')}" if level else ""


def _gained(report: Report, row: StudentRow) -> str:
    """A sentence on a student that is proven above its teacher: a gain hides what was lost; else empty."""
    if not row.gained:
        return ""
    retained = []
    for way in row.gained:
        found = None if way == NEEDLES else agreement_with_teacher(report, row.checkpoint, way, INFORMATIVE)
        if found is not None and found.retained.point is not None:
            retained.append(f"{percent(found.retained.point)} % {_by(row, way)}")
    label = report.checkpoints[row.checkpoint].label
    where = " and ".join(_by(row, way) if way != NEEDLES else f"on {row.name(way)}" for way in row.gained)
    shares = f" ({' and '.join(retained)} of the teacher's right answers)" if retained else ""
    return f" {label} is proven above its teacher {where}: a gain does not say what was retained{shares}."


def _by(row: StudentRow, way: str) -> str:
    return f"of {row.name(way)}" if way == NEEDLES else f"under {row.name(way)}"


def _hidden(report: Report, rows: Sequence[StudentRow], first: StudentRow) -> str:
    """Another student that leads under log-likelihood, with what it loses; empty if `first` leads there."""
    way = PROTOCOLS[0]
    leader = max(rows, key=lambda row: _point(row, way))
    if leader is first or leader.worst_way == way or _point(leader, way) <= _point(first, way):
        return ""
    return (
        f"; {report.checkpoints[leader.checkpoint].label} leads under {PROTOCOL_TITLES[way]} with "
        f"{percent(_point(leader, way))} % but keeps {percent(leader.worst.point)} % "
        f"{_by(leader, leader.worst_way)}"
    )


def _point(row: StudentRow, way: str) -> float:
    share = row.shares.get(way)
    return -1.0 if share is None or share.point is None else share.point


def recovery_sentence(report: Report) -> str:
    """One sentence on the best student of the leaderboard; nothing that is not statistically proven."""
    best = best_student(report)
    if best is None:
        return _without_recovery(report)
    label = report.checkpoints[best.checkpoint].label
    recovered = (
        f"{label} recovers {percent(best.recovery.point)} % of its teacher "
        f"under {PROTOCOL_TITLES[best.protocol]}{_agreement_clause(report, best)}"
    )
    row = report.gap(best.checkpoint)
    if best.protocol != "loglikelihood" or row is None:
        return f"{recovered}{_unmeasured_clause(report, best)}."
    if row.teacher_below_chance and row.gap.low <= 0:
        # The teacher is at chance on those benchmarks; the other generation benchmarks say more.
        lowest = _lowest_category(report, best.checkpoint)
        if lowest is not None:
            kind = CATEGORY_TITLES[lowest.scope].lower()
            return (
                f"{recovered}; its lowest recovery under generation is {percent(lowest.recovery.point)} % "
                f"({kind})."
            )
        generation = report.average(best.checkpoint, "generation", INFORMATIVE)
        if generation is not None and generation.recovery.point is not None:
            return f"{recovered}; under generation it recovers {percent(generation.recovery.point)} %."
    return f"{recovered}; {gap_clause(row)}."


def _agreement_clause(report: Report, best: AverageRow) -> str:
    """Such as `` and makes its choice on 78.1 % of the documents``; empty without comparable answers."""
    row = agreement_with_teacher(report, best.checkpoint, best.protocol, best.scope)
    if row is None or row.agreement.point is None:
        return ""
    what = "makes its choice" if best.protocol == "loglikelihood" else "gives its answer"
    return f" and {what} on {percent(row.agreement.point)} % of the documents"


def _unmeasured_clause(report: Report, best: AverageRow) -> str:
    """Says that a student has no scores under generation, where others have some."""
    measured = {s for s in report.students() if (row := report.average(s, "generation")) and row.benchmarks}
    if not measured or best.checkpoint in measured:
        return ""
    return "; it was not measured under generation"


def _lowest_category(report: Report, checkpoint: int) -> AverageRow | None:
    """The category with the lowest recovery, of those evaluated under generation alone."""
    both = {row.benchmark for row in report.gaps}
    rows = [
        row
        for row in report.averages
        if (row.checkpoint, row.protocol) == (checkpoint, "generation")
        and row.scope not in (ALL, INFORMATIVE)
        and row.recovery.point is not None
        and not row.missing
        and not both & set(row.benchmarks)
    ]
    return min(rows, key=lambda row: row.recovery.point or 0.0, default=None)


def gap_clause(row: GapRow) -> str:
    """The gap between the protocols as a clause."""
    points = f"{100 * abs(row.gap.point):.1f} points"
    if row.kind == "loss":
        return f"it loses {points} more under generation"
    if row.kind == "gain":
        return f"it loses {points} less under generation"
    return "no further loss under generation is proven"


def _best_incomplete(report: Report) -> str:
    """The best of the students that have most benchmarks; empty if none has a recovery.

    A student with fewer benchmarks is not compared, and a second protocol is named if it was measured.
    """
    found: dict[int, list[AverageRow]] = {}
    for student in report.students():
        averages = (report.average(student, protocol, INFORMATIVE) for protocol in report.protocols)
        found[student] = [row for row in averages if row is not None and row.recovery.point is not None]
    measured = {student: rows for student, rows in found.items() if rows}
    if not measured:
        return ""
    most = max(sum(len(row.benchmarks) for row in rows) for rows in measured.values())
    best = max(
        (rows for rows in measured.values() if sum(len(row.benchmarks) for row in rows) == most),
        key=lambda rows: rows[0].recovery.point or 0.0,
    )
    clauses = []
    for row in best:
        planned = len({*row.benchmarks, *row.missing})
        part = f" over {len(row.benchmarks)} of {counted(planned, 'benchmark')}" if row.missing else ""
        protocol = PROTOCOL_TITLES[row.protocol]
        clauses.append(f"{percent(row.recovery.point)} % of its teacher under {protocol}{part}")
    label = report.checkpoints[best[0].checkpoint].label
    return f"{label} recovers {' and '.join(clauses)}; the others are missing."


def _without_recovery(report: Report) -> str:
    checkpoints = counted(len(report.checkpoints), "checkpoint")
    if not report.teachers:
        return f"Scores of {checkpoints}; without a teacher there is no recovery."
    if not report.students():
        return "Scores of the teacher; there is no student yet."
    if incomplete := _best_incomplete(report):
        return incomplete
    if report.informative and not any(row.is_informative for row in report.informative):
        who = " or ".join(f"'{report.checkpoints[i].label}'" for i in report.teachers)
        return f"Nothing was measured: on no benchmark is {who} above chance with answers that it names."
    return f"Scores of {checkpoints}; no recovery is defined."
