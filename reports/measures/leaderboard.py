"""The leaderboard: one row per checkpoint, protocol and scope.

Columns of other quantities stand in the `columns` of their `Measure`; see docs/extend/measure.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from evalsuite.reports.analysis.rows import AverageRow
from evalsuite.reports.analysis.scopes import INFORMATIVE
from evalsuite.reports.measure import MEASURES, Measure, usable
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
    percentage,
    teacher_of,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the leaderboard: a checkpoint in a scope under a protocol."""

    report: Report
    average: AverageRow
    compared: AverageRow
    """The average over the benchmarks on which answers are compared with the teacher's."""

    @classmethod
    def of(cls, report: Report, average: AverageRow) -> "Entry":
        """The row of an average, compared on the same benchmarks."""
        return cls(report, average, average)

    @classmethod
    def leading_of(cls, report: Report, average: AverageRow) -> "Entry":
        """The only row of a checkpoint, compared with its teacher on the benchmarks of `leading`."""
        return cls(report, average, cls.of(report, average).leading)

    @property
    def checkpoint(self) -> int:
        """Index of the checkpoint."""
        return self.average.checkpoint

    @property
    def is_student(self) -> bool:
        """Whether the checkpoint has a teacher."""
        return self.report.checkpoints[self.checkpoint].teacher is not None

    @property
    def leading(self) -> AverageRow:
        """The average that ranks: over the informative benchmarks, or this one where none is informative."""
        found = self.report.average(self.checkpoint, self.average.protocol, INFORMATIVE)
        return self.average if found is None else found


_IDENTITY: dict[str, Callable[[Report, Entry], Value]] = {
    "label": lambda report, entry: label_of(report, entry.checkpoint),
    "weights_id": lambda report, entry: report.checkpoints[entry.checkpoint].weights_id,
    "role": lambda report, entry: report.checkpoints[entry.checkpoint].role,
    "teacher": lambda report, entry: teacher_of(report, entry.checkpoint),
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
    percentage(
        "informative_recovery",
        title="recovery",
        hint="Student ÷ teacher over the informative benchmarks: the teacher is above chance and, under "
        "generation, names an answer in 90 % of its responses.",
        value=lambda report, entry: entry.leading.recovery if entry.is_student else None,
        outputs=TABLES,
        per_protocol=True,
        better="higher",
    ),
    percentage(
        "informative_share_of_lead",
        title="share of the lead",
        hint="(student − chance) ÷ (teacher − chance) over the informative benchmarks.",
        value=lambda report, entry: entry.leading.chance_normalized_recovery if entry.is_student else None,
        outputs=("markdown", "terminal"),
        per_protocol=True,
        better="higher",
    ),
    percentage(
        "recovery",
        title="recovery, all",
        hint="Student ÷ teacher, ratio of macro averages over all benchmarks.",
        value=lambda report, entry: entry.average.recovery,
        outputs=EVERYWHERE,
        with_interval=False,
        better="higher",
    ),
    percentage(
        "chance_normalized_recovery",
        title="share of the lead",
        hint="(student − chance) ÷ (teacher − chance): what is left of the teacher's lead over guessing, "
        "which a plain recovery overstates.",
        value=lambda report, entry: entry.average.chance_normalized_recovery,
        outputs=("csv", "page"),
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
    percentage(
        "capped_recovery",
        title="capped",
        hint="Recovery in which no benchmark counts above its teacher.",
        value=lambda report, entry: entry.average.capped_recovery,
        outputs=("csv", "page"),
        with_interval=False,
        better="higher",
    ),
    Column(
        "counted_with",
        title="counted with",
        hint="Benchmarks of the scope whose requests another one has: the two count once.",
        value=lambda report, entry: " ".join(f"{a}={b}" for a, b in entry.average.counts_with.items()),
        unit="text",
        outputs=CSV,
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
    """The table with the columns of all measures, and why one of another package is left out."""
    table, problems = LEADERBOARD, []
    for name in usable():
        origin = MEASURES.origin(name)
        for column in MEASURES[name].columns:
            if origin == "evalsuite":
                table = replace(table, columns=(*table.columns, column))
                continue
            try:
                wider = replace(table, columns=(*table.columns, column))
                replace(wider, columns=(column,)).check(report)
                table = wider
            except Exception as error:  # whatever a foreign column raises
                problems.append(
                    f"leaderboard column '{column.name}' of {origin} is left out: "
                    f"{type(error).__name__}: {error}"
                )
    return table, problems


def columns_of(report: Report, output: Output) -> dict[str, Column[Entry]]:
    """The columns of an output by name, in order."""
    return {column.name: column for column in report.of(leaderboard)[0].columns_of(output)}


MEASURES.add("leaderboard", Measure(tables=(LEADERBOARD,), metrics=METRICS))
