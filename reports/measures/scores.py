"""Scores: one row per checkpoint, benchmark, protocol and context, also where there is none yet."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from evalsuite.foundation.taxonomy import OUTCOMES
from evalsuite.reports.analysis.flips import FLIPS
from evalsuite.reports.analysis.informative import InformativeRow
from evalsuite.reports.analysis.rows import BenchmarkRow
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.measures.agreement import agreements
from evalsuite.reports.measures.agreement.rows import AgreementRow
from evalsuite.reports.measures.letters import LetterRow, letters
from evalsuite.reports.report import Report
from evalsuite.reports.run import Benchmark, ProtocolSettings
from evalsuite.reports.table import Column, Table, Value, label_column, teacher_column, weights_column


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """One cell of a checkpoint, with what else is known of it."""

    checkpoint: int
    plan: Benchmark
    protocol: str
    context: int | None
    status: str
    """`measured`, or `incomplete` or `not read`, where only the documents are known."""
    documents: int
    row: BenchmarkRow | None = None
    counts_with: str | None = None
    """The benchmark whose requests include those of the cell: the two count once."""
    informative: InformativeRow | None = None
    """Of the checkpoint's teacher."""
    flips: AgreementRow | None = None
    letters: LetterRow | None = None
    """Named answers; None under log-likelihood and without choices."""

    @property
    def how(self) -> ProtocolSettings:
        """The plan of the protocol."""
        return self.plan.protocols[self.protocol]  # type: ignore[index]  # the keys are the protocol names

    @property
    def metric(self) -> str:
        """The metric; of a perplexity that is measured, its logarithm."""
        if self.row is None or self.how.direction == "higher":
            return self.how.metric
        return f"log-perplexity ({self.how.metric})"


def score_lines(report: Report) -> list[ScoreLine]:
    """The measured cells, then the incomplete ones, then those that were not read."""
    plans = {benchmark.name: benchmark for benchmark in report.benchmarks}
    flips = {(r.checkpoint, r.scope, r.protocol, r.context): r for r in report.of(agreements).by_benchmark}
    named = {(r.checkpoint, r.benchmark, r.context): r for r in report.of(letters)}
    informative = {(r.teacher, r.benchmark, r.protocol): r for r in report.informative}
    counts_with = _counts_with(report)
    lines = []
    for row in report.scores:
        key = row.checkpoint, row.benchmark, row.protocol, row.context
        teacher = report.checkpoints[row.checkpoint].teacher
        who = row.checkpoint if teacher is None else teacher
        lines.append(
            ScoreLine(
                row.checkpoint,
                plans[row.benchmark],
                row.protocol,
                row.context,
                "measured",
                row.documents,
                row,
                counts_with.get(key),
                informative.get((who, row.benchmark, row.protocol)),
                flips.get(key),
                named.get((row.checkpoint, row.benchmark, row.context))
                if row.protocol == "generation"
                else None,
            )
        )
    lacking = [(each.checkpoint, each.key, "incomplete", each.documents) for each in report.tensor.incomplete]
    lacking += [(checkpoint, key, "not read", 0) for checkpoint, key in report.tensor.unread]
    lines += [
        ScoreLine(checkpoint, plans[name], protocol, context, status, documents)
        for checkpoint, (name, protocol, context), status, documents in lacking
    ]
    return lines


def _counts_with(report: Report) -> Mapping[tuple[int, str, str, int | None], str]:
    found = {}
    cells = report.tensor.cells
    for i in range(len(report.checkpoints)):
        mine = [cell for cell in cells if i in cell.present]
        for at, into in report.tensor.counting.representatives(mine).items():
            found[(i, *mine[at].key)] = mine[into].benchmark.name
    return found


def _of(part: str, get: Callable[[Any], Value]) -> Callable[[Report, ScoreLine], Value]:
    """A value of a part of a line; None where the line has none."""

    def value(report: Report, line: ScoreLine) -> Value:
        found = getattr(line, part)
        return None if found is None else get(found)

    return value


def _row(name: str, **settings: Any) -> Column[ScoreLine]:
    """A column of the same name in the row of the benchmark."""
    return Column(name, value=_of("row", lambda row: getattr(row, name)), **settings)


def _outcome(name: str, row: BenchmarkRow) -> Value:
    return row.outcomes[name]


def _flip(name: str, row: AgreementRow) -> Value:
    found: Value = getattr(row, name).interval
    return found


SCORES: Table[ScoreLine] = Table(
    name="scores",
    title="Scores",
    rows=score_lines,
    json_rows=lambda report: report.scores,
    is_always_written=True,
    columns=(
        label_column(),
        weights_column(),
        Column("role", value=lambda report, line: report.checkpoints[line.checkpoint].role, unit="text"),
        teacher_column(),
        Column("benchmark", value=lambda report, line: line.plan.name, unit="text"),
        Column("category", value=lambda report, line: line.plan.category, unit="text"),
        Column("protocol", unit="text"),
        Column("context"),
        Column("metric", unit="text"),
        Column("status", unit="text"),
        Column("documents"),
        Column("counts_with", unit="text"),
        _row("out_of_distribution"),
        Column("planned", value=lambda report, line: line.how.planned(line.context)),
        _row("seeds"),
        _row("score", kind="interval", unit="percent"),
        Column("score_method", value=_of("row", lambda row: row.score.method), unit="text"),
        _row("seed_deviation"),
        _row("drop", kind="interval", unit="points"),
        Column(
            "drop_method", value=_of("row", lambda row: row.drop.method if row.drop else None), unit="text"
        ),
        _row("recovery", kind="estimate", unit="percent"),
        _row("chance_normalized_recovery", kind="estimate", unit="percent"),
        _row("wins"),
        _row("losses"),
        Column("mcnemar_p", value=_of("row", lambda row: row.mcnemar)),
        _row("mde"),
        *(Column(name, value=_of("row", partial(_outcome, name))) for name in OUTCOMES),
        _row("closed_by_force"),
        Column("informative", value=_of("informative", lambda row: int(row.is_informative))),
        Column("not_informative_why", value=_of("informative", lambda row: row.why or None), unit="text"),
        *(Column(name, kind="interval", value=_of("flips", partial(_flip, name))) for name in FLIPS),
        Column("named", value=_of("letters", lambda row: row.named)),
        Column(
            "accuracy_among_named",
            kind="interval",
            value=_of("letters", lambda row: row.accuracy_among_named.interval),
        ),
        Column(
            "letters",
            value=_of(
                "letters", lambda row: " ".join(f"{name}:{share:.4f}" for name, share in row.letters.items())
            ),
            unit="text",
        ),
    ),
)
MEASURES.add("scores", Measure(tables=(SCORES,)))
