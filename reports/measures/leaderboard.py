"""The leaderboard: one row per checkpoint, protocol and scope, with the columns of all measures.

A column of another package stands in the `columns` of its `Measure`; see docs/extend/measure.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from evalsuite.reports.analysis.rows import AverageRow, GapRow
from evalsuite.reports.analysis.scopes import ALL, INFORMATIVE
from evalsuite.reports.measure import MEASURES, Measure, usable
from evalsuite.reports.measures.agreement import agreement_with_teacher, tolerance_of
from evalsuite.reports.measures.agreement.rows import AgreementRow
from evalsuite.reports.measures.agreement.tolerance import ToleranceRow
from evalsuite.reports.measures.distances import distance_of
from evalsuite.reports.measures.distances.rows import DistanceRow
from evalsuite.reports.measures.efficiency import efficiency
from evalsuite.reports.measures.efficiency.comparison import Quantity, typical_ratio
from evalsuite.reports.measures.recovery import METRICS
from evalsuite.reports.report import Report
from evalsuite.reports.table import (
    CSV,
    EVERYWHERE,
    TABLES,
    Column,
    Output,
    Table,
    Value,
    label_of,
    teacher_of,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the leaderboard: a checkpoint in a scope under a protocol, with what else is known of it."""

    report: Report
    average: AverageRow
    agreement: AgreementRow | None
    """Compared with its teacher in the same scope."""
    tolerance: ToleranceRow | None
    """The tolerance curve in the same scope."""
    distance: DistanceRow | None
    """At the answers of all benchmarks; None in the scopes of categories."""
    gap: GapRow | None
    """Between the protocols, over all benchmarks with both."""

    @classmethod
    def of(cls, report: Report, average: AverageRow) -> "Entry":
        """Collect the rows that belong to an average."""
        where = average.checkpoint, average.protocol, average.scope
        return cls(
            report=report,
            average=average,
            agreement=agreement_with_teacher(report, *where),
            tolerance=tolerance_of(report, *where),
            distance=distance_of(report, average.checkpoint) if average.scope in (ALL, INFORMATIVE) else None,
            gap=report.gap(average.checkpoint),
        )

    @classmethod
    def leading_of(cls, report: Report, average: AverageRow) -> "Entry":
        """The only row of a checkpoint, compared with its teacher on the benchmarks of `leading`."""
        entry = cls.of(report, average)
        return replace(entry, agreement=cls.of(report, entry.leading).agreement)

    @property
    def is_student(self) -> bool:
        """Whether the checkpoint has a teacher."""
        return self.report.checkpoints[self.average.checkpoint].teacher is not None

    @property
    def leading(self) -> AverageRow:
        """The average that ranks: over the informative benchmarks, or this one where none is informative."""
        found = self.report.average(self.average.checkpoint, self.average.protocol, INFORMATIVE)
        return self.average if found is None else found


def _retrained(report: Report, entry: Entry) -> str:
    if entry.distance is None or not entry.distance.is_retrained:
        return ""
    return "† measured on other weights: the same recipe, trained again"


def _agreement(name: str) -> Callable[[Report, Entry], Value]:
    return lambda report, entry: None if entry.agreement is None else getattr(entry.agreement, name)


def _cost(quantity: Quantity) -> Callable[[Report, Entry], Value]:
    def value(report: Report, entry: Entry) -> Value:
        own = report.checkpoints[entry.average.checkpoint]
        if own.teacher is None or entry.average.scope != ALL:
            return None
        teacher = report.checkpoints[own.teacher].plan.weights_id
        return typical_ratio(report.of(efficiency), own.plan.weights_id, teacher, quantity)

    return value


_COSTS: dict[Quantity, str] = {"prefill": "prefill, ×", "decode": "decode, ×", "cache": "cache, ×"}
_IDENTITY: dict[str, Callable[[Report, Entry], Value]] = {
    "label": lambda report, entry: label_of(report, entry.average.checkpoint),
    "weights_id": lambda report, entry: report.checkpoints[entry.average.checkpoint].plan.weights_id,
    "role": lambda report, entry: report.checkpoints[entry.average.checkpoint].plan.role,
    "teacher": lambda report, entry: teacher_of(report, entry.average.checkpoint),
    "protocol": lambda report, entry: entry.average.protocol,
    "scope": lambda report, entry: entry.average.scope,
}
COLUMNS: tuple[Column[Entry], ...] = (
    *(Column(name, value=value, unit="text", outputs=CSV) for name, value in _IDENTITY.items()),
    Column(
        "rank",
        title="rank",
        hint="By recovery; the best and worst rank that are not excluded stand next to it.",
        value=lambda report, entry: entry.average.rank,
        better="lower",
        outputs=CSV,
    ),
    Column(
        "rank_low",
        title="best rank",
        hint="1 + the number of students proven better.",
        value=lambda report, entry: entry.average.rank_low,
        better="lower",
        outputs=CSV,
    ),
    Column(
        "rank_high",
        title="worst rank",
        hint="The number of students − those proven worse.",
        value=lambda report, entry: entry.average.rank_high,
        better="lower",
        outputs=CSV,
    ),
    Column(
        "informative_recovery",
        title="recovery",
        hint="Student ÷ teacher over the informative benchmarks: the teacher is above chance and, under "
        "generation, names an answer in 90 % of its responses.",
        value=lambda report, entry: entry.leading.recovery if entry.is_student else None,
        outputs=TABLES,
        per_protocol=True,
        kind="estimate",
        unit="percent",
        better="higher",
    ),
    Column(
        "informative_share_of_lead",
        title="share of the lead",
        hint="(student − chance) ÷ (teacher − chance) over the informative benchmarks.",
        value=lambda report, entry: entry.leading.chance_normalized_recovery if entry.is_student else None,
        outputs=("markdown", "terminal"),
        per_protocol=True,
        kind="estimate",
        unit="percent",
        better="higher",
    ),
    Column(
        "recovery",
        title="recovery, all",
        hint="Student ÷ teacher, ratio of macro averages over all benchmarks.",
        value=lambda report, entry: entry.average.recovery,
        outputs=EVERYWHERE,
        with_interval=False,
        kind="estimate",
        unit="percent",
        better="higher",
    ),
    Column(
        "chance_normalized_recovery",
        title="share of the lead",
        hint="(student − chance) ÷ (teacher − chance): what is left of the teacher's lead over guessing, "
        "which a plain recovery overstates.",
        value=lambda report, entry: entry.average.chance_normalized_recovery,
        outputs=("csv", "page"),
        kind="estimate",
        unit="percent",
        better="higher",
    ),
    Column(
        "score",
        title="score",
        hint="Macro average of the scores.",
        value=lambda report, entry: entry.average.score,
        kind="interval",
        outputs=CSV,
        unit="percent",
        better="higher",
    ),
    Column(
        "drop",
        title="drop",
        hint="Teacher − student, macro average.",
        value=lambda report, entry: entry.average.drop,
        kind="interval",
        unit="points",
        better="lower",
        outputs=CSV,
    ),
    Column(
        "win_or_tie_rate",
        title="win or tie",
        hint="Share of documents on which the student scores at least as high as the teacher.",
        value=lambda report, entry: entry.average.win_or_tie_rate,
        outputs=("csv", "page"),
        unit="percent",
        better="higher",
    ),
    Column(
        "benchmarks",
        title="benchmarks",
        hint="Benchmarks of the average.",
        value=lambda report, entry: " ".join(entry.average.benchmarks),
        unit="text",
        outputs=CSV,
    ),
    Column(
        "missing",
        title="missing",
        hint="Benchmarks of the scope without scores; if any, there is no rank.",
        value=lambda report, entry: " ".join(entry.average.missing),
        unit="text",
        outputs=CSV,
    ),
    Column(
        "documents",
        title="documents",
        hint="Documents of the average.",
        value=lambda report, entry: entry.average.documents,
        outputs=CSV,
        better="higher",
    ),
    Column(
        "capped_recovery",
        title="capped",
        hint="Recovery in which no benchmark counts above its teacher.",
        value=lambda report, entry: entry.average.capped_recovery,
        outputs=("csv", "page"),
        with_interval=False,
        kind="estimate",
        unit="percent",
        better="higher",
    ),
    Column(
        "agreement",
        title="agreement",
        hint="Share of documents on which the student makes the teacher's choice: the highest summed "
        "log-probability, or the extracted answer.",
        value=_agreement("agreement"),
        kind="estimate",
        unit="percent",
        better="higher",
    ),
    Column(
        "retained",
        title="retained",
        hint="Share of the teacher's right answers that stay right.",
        value=_agreement("retained"),
        kind="estimate",
        unit="percent",
        better="higher",
    ),
    Column(
        "scored_agreement",
        title="scored agreement",
        hint="Agreement of the choices that the metric picks.",
        value=_agreement("scored_agreement"),
        outputs=CSV,
        kind="estimate",
        unit="percent",
        better="higher",
    ),
    Column(
        "kappa",
        title="κ",
        hint="Cohen's κ: agreement beyond that of independent choices.",
        value=_agreement("kappa"),
        digits=2,
        outputs=("csv", "page"),
        with_interval=False,
        kind="estimate",
        better="higher",
    ),
    Column(
        "lost",
        title="lost",
        hint="Share of documents that only the teacher has right.",
        value=_agreement("lost"),
        better="lower",
        outputs=("csv", "page"),
        with_interval=False,
        kind="estimate",
        unit="percent",
    ),
    Column(
        "gained",
        title="gained",
        hint="Share of documents that only the student has right.",
        value=_agreement("gained"),
        outputs=("csv", "page"),
        with_interval=False,
        kind="estimate",
        unit="percent",
        better="higher",
    ),
    Column(
        "critical_tolerance",
        title="α*",
        hint="The smallest relative tolerance within which the student is on half of the benchmarks.",
        value=lambda report, entry: None if entry.tolerance is None else entry.tolerance.critical_half,
        kind="interval",
        better="lower",
        outputs=("csv", "page"),
        with_interval=False,
        unit="percent",
    ),
    Column(
        "kl",
        title="KL, nats",
        hint="KL(teacher ‖ student) per token at the right answers of all benchmarks, over the vocabulary.",
        value=lambda report, entry: None if entry.distance is None else entry.distance.kl,
        kind="interval",
        better="lower",
        digits=3,
        outputs=("csv", "page"),
        with_interval=False,
        note=_retrained,
    ),
    Column(
        "equivalent_bits",
        title="bits",
        hint="Bits of the rounding of the teacher that is as far from it.",
        value=lambda report, entry: None if entry.distance is None else entry.distance.equivalent_bits,
        outputs=("csv", "page"),
        with_interval=False,
        note=_retrained,
        kind="estimate",
        better="higher",
    ),
    Column(
        "distance_trained_again",
        title="distance of the recipe, trained again",
        hint="1 if KL and bits were measured on other weights: the same recipe, trained again.",
        value=lambda report, entry: None if entry.distance is None else int(entry.distance.is_retrained),
        outputs=CSV,
    ),
    Column(
        "counted_with",
        title="counted with",
        hint="Benchmarks of the scope whose requests another one has: the two count once.",
        value=lambda report, entry: " ".join(f"{a}={b}" for a, b in entry.average.counts_with.items()),
        unit="text",
        outputs=CSV,
    ),
    Column(
        "gap",
        title="gap",
        hint="Drop under generation − drop under log-likelihood, on documents with both.",
        value=lambda report, entry: None if entry.gap is None else entry.gap.gap,
        kind="interval",
        unit="points",
        better="lower",
        outputs=("markdown",),
    ),
    *(
        Column(
            f"{quantity}_ratio",
            title=title,
            hint="Teacher ÷ student at 32k tokens, or at the longest measured context; more is better.",
            value=_cost(quantity),
            kind="interval",
            better="higher",
            outputs=("csv", "page"),
        )
        for quantity, title in _COSTS.items()
    ),
)
LEADERBOARD: Table[Entry] = Table(
    name="leaderboard",
    title="What the students retain",
    rows=lambda report: [Entry.of(report, row) for row in report.averages],
    columns=COLUMNS,
    json="averages",
    json_rows=lambda report: report.averages,
    is_always_written=True,
)


def leaderboard(report: Report) -> tuple[Table[Entry], list[str]]:
    """The table with the columns of other packages, and why one of them is left out."""
    table, problems = LEADERBOARD, []
    for name in usable():
        for column in MEASURES[name].columns:
            try:
                wider = replace(table, columns=(*table.columns, column))
                replace(wider, columns=(column,)).check(report)
                table = wider
            except Exception as error:  # whatever a foreign column raises
                problems.append(
                    f"leaderboard column '{column.name}' of {MEASURES.origin(name)} is left out: "
                    f"{type(error).__name__}: {error}"
                )
    return table, problems


def columns_of(report: Report, output: Output) -> dict[str, Column[Entry]]:
    """The columns of an output by name, in order."""
    return {column.name: column for column in report.of(leaderboard)[0].columns_of(output)}


MEASURES.add("leaderboard", Measure(tables=(LEADERBOARD,), metrics=METRICS))
