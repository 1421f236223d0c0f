"""Which student to ship: every way in which it was measured, and the worst of them.

A student is worth what it keeps where it loses most. Shares of benchmarks that its teacher cannot do say
nothing, so only informative ones count, and needles only at contexts at which the teacher finds half of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports import formatting
from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.analysis.scopes import INFORMATIVE
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.measures.distances import distance_of, kl_column
from evalsuite.reports.measures.efficiency import ratio_column
from evalsuite.reports.measures.recall import RecallRow, against_recovery, recall
from evalsuite.reports.report import Report
from evalsuite.reports.table import (
    CSV,
    PAGE,
    Column,
    Table,
    Value,
    label_column,
    percentage,
    teacher_column,
    weights_column,
)

BAR = 0.9
"""Share of the teacher's lead that the default policy demands in every way."""
HALF = 0.5
"""Share of the needles that the teacher must find at a context."""
NEEDLES = "needles"
Verdict = Literal["keeps", "loses", "undecided", "not measured", "passes", "fails", "not gated"]
"""Of the default policy the first four; of a policy of the user the last five."""
SHIPPED: tuple[Verdict, ...] = ("keeps", "passes")


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentRow:
    """One student: what it keeps of its teacher in every way that was measured."""

    checkpoint: int
    verdict: Verdict
    worst: Estimate
    """The lowest of the shares."""
    worst_way: str
    """Whose share that is; empty without any."""
    shares: Mapping[str, Estimate]
    """Protocol → share of the teacher's lead over chance on informative benchmarks; needles → share of those
    that the teacher finds."""
    context: int | None
    """Of the needles, in tokens."""

    @property
    def gained(self) -> tuple[str, ...]:
        """Ways in which the student is proven to be above its teacher."""
        return tuple(way for way, share in self.shares.items() if share.interval and share.interval.low > 1)

    def name(self, way: str) -> str:
        """A way in words, such as `needles at 4k`."""
        if way == NEEDLES:
            return way if self.context is None else f"{way} at {formatting.tokens(self.context)}"
        return formatting.PROTOCOL_TITLES[way]


@dataclass(frozen=True, slots=True)
class PolicyVerdicts:
    """What the policy of `compare --policy` decides."""

    policy: str
    """Its name in a sentence, such as `policy gate.yaml`."""
    by_label: Mapping[str, Verdict]


def policy_verdicts(report: Report) -> PolicyVerdicts | None:
    """The decisions of the policy that the report was made with; None without a policy."""
    return None


def student_rows(report: Report) -> list[StudentRow]:
    """All students, the highest of the lowest shares first; equal ones by the mean of their shares."""
    verdicts = report.of(policy_verdicts)
    found = []
    for teacher in report.teachers:
        students = report.students(teacher)
        needles = _needles(report, teacher)
        shares = {student: _shares(report, student, needles) for student in students}
        demanded = {way for each in shares.values() for way, share in each.items() if share.interval}
        found += [_row(student, shares[student], demanded, needles) for student in students]
    if verdicts is not None:
        labels = [each.label for each in report.checkpoints]
        found = [
            replace(row, verdict=verdicts.by_label.get(labels[row.checkpoint], "not gated")) for row in found
        ]
    return sorted(found, key=_order, reverse=True)


def _order(row: StudentRow) -> tuple[float, float]:
    points = [share.point for share in row.shares.values() if share.point is not None]
    return (round(min(points), 3), sum(points) / len(points)) if points else (-1.0, -1.0)


def _needles(report: Report, teacher: int) -> Mapping[int, RecallRow]:
    """Checkpoint → its needles at the longest context at which the teacher finds half of them."""
    rows = against_recovery(report.of(recall))
    reached = [
        row for row in rows if row.checkpoint == teacher and (row.score.point or 0.0) >= HALF and row.context
    ]
    if not reached:
        return {}
    context = max(row.context or 0 for row in reached)
    return {row.checkpoint: row for row in rows if row.context == context}


def _shares(report: Report, student: int, needles: Mapping[int, RecallRow]) -> dict[str, Estimate]:
    found: dict[str, Estimate] = {}
    for protocol in PROTOCOLS:
        average = report.average(student, protocol, INFORMATIVE)
        if average is not None and average.benchmarks:
            share = average.chance_normalized_recovery
            if average.missing:
                share = Estimate(None, f"{formatting.some(average.missing)} are missing")
            found[protocol] = share
    if student in needles:
        found[NEEDLES] = needles[student].recovery
    return found


def _row(
    student: int, shares: Mapping[str, Estimate], demanded: set[str], needles: Mapping[int, RecallRow]
) -> StudentRow:
    measured = {way: share.interval for way, share in shares.items() if share.interval is not None}
    worst = min(measured, key=lambda way: measured[way].point, default="")
    verdict: Verdict = "undecided"
    if any(interval.high < BAR for interval in measured.values()):
        verdict = "loses"
    elif demanded - set(measured) or not measured:
        verdict = "not measured"
    elif all(interval.low >= BAR for interval in measured.values()):
        verdict = "keeps"
    context = needles[student].context if student in needles else None
    return StudentRow(
        checkpoint=student,
        verdict=verdict,
        worst=shares[worst] if worst else Estimate(None, "nothing was measured"),
        worst_way=worst,
        shares=shares,
        context=context,
    )


def _share(way: str, title: str, hint: str) -> Column[StudentRow]:
    return percentage(
        way,
        title,
        hint,
        value=lambda report, row: row.shares.get(way),
        better="higher",
    )


def _about(report: Report, row: StudentRow) -> str:
    entry = report.checkpoints[row.checkpoint]
    parts = (lineage_of(entry).describe_mixers(), formatting.parameters(entry.parameters))
    return ", ".join(part for part in parts if part)


def _tokens(report: Report, row: StudentRow) -> int | None:
    return lineage_of(report.checkpoints[row.checkpoint]).tokens


def _tokens_text(report: Report, row: StudentRow) -> str:
    tokens = _tokens(report, row)
    return formatting.NOTHING if tokens is None else formatting.tokens(tokens)


def _taxonomy(name: str, title: str, hint: str) -> Column[StudentRow]:
    def value(report: Report, row: StudentRow) -> Value:
        place = lineage_of(report.checkpoints[row.checkpoint]).main_taxonomy.get(name)
        return place if isinstance(place, str) else None

    return Column(name, title, hint, value=value, unit="text", outputs=CSV + PAGE)


def _state(report: Report, row: StudentRow) -> int | None:
    return lineage_of(report.checkpoints[row.checkpoint]).state_bytes


def _state_text(report: Report, row: StudentRow) -> str:
    size = _state(report, row)
    return formatting.NOTHING if size is None else formatting.bytes_(size)


def _gained(report: Report, row: StudentRow) -> str:
    return f"gained: {', '.join(map(row.name, row.gained))}" if row.gained else ""


_CSS: Mapping[Verdict, str] = {
    "keeps": "gain",
    "passes": "gain",
    "loses": "loss",
    "fails": "loss",
    "undecided": "tie",
    "not measured": "muted",
    "not gated": "muted",
}
STUDENTS: Table[StudentRow] = Table(
    name="students",
    title="Which student?",
    rows=lambda report: report.of(student_rows),
    columns=(
        label_column(title="student", about=_about),
        weights_column(),
        teacher_column(),
        Column(
            "verdict",
            hint=f"With `--policy`, that of the gate. Else the default: at least {100 * BAR:g} % of the "
            "teacher's lead in every way, by 95 % intervals over documents, not corrected for the number of "
            "students.",
            unit="text",
            about=_gained,
            css=lambda report, row: _CSS[row.verdict],
        ),
        percentage(
            "worst",
            "lowest share",
            "The lowest of the shares to the right; the table is sorted by it.",
            better="higher",
            about=lambda report, row: row.name(row.worst_way) if row.worst_way else "",
        ),
        Column("worst_way", unit="text", outputs=CSV),
        _share(
            "loglikelihood",
            "log-likelihood",
            "(student − chance) ÷ (teacher − chance) over the informative benchmarks under log-likelihood.",
        ),
        _share("generation", "generation", "The same under generation."),
        _share(NEEDLES, "needles", "Needles that the student finds ÷ those that its teacher finds."),
        Column("context", hint="Of the needles, in tokens.", outputs=CSV),
        kl_column(lambda report, row: distance_of(report, row.checkpoint)),
        ratio_column("decode", "decode", lambda row: row.checkpoint, digits=2),
        Column(
            "tokens",
            "trained on",
            "Tokens of all stages.",
            value=_tokens,
            show=_tokens_text,
            better="lower",
        ),
        _taxonomy("update", "update", "How a token of the recurrent mixer enters its state."),
        _taxonomy("decay", "decay", "Whether its state decays, and whether the input decides how much."),
        _taxonomy("granularity", "decay per", "What has a decay of its own."),
        Column(
            "state_bytes",
            "state",
            "What does not grow with the context, of all layers: in bfloat16, recurrent states in float32.",
            value=_state,
            show=_state_text,
            better="lower",
            outputs=CSV + PAGE,
        ),
    ),
)
MEASURES.add("students", Measure(tables=(STUDENTS,)))
