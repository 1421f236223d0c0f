"""Columns of the leaderboard for benchmarks: every score with its change from the teacher."""

from collections.abc import Mapping
from dataclasses import dataclass

from evalsuite.foundation import counted
from evalsuite.reports import formatting
from evalsuite.reports.analysis.rows import BenchmarkRow, DropRow
from evalsuite.reports.analysis.scopes import ALL, INFORMATIVE
from evalsuite.reports.report import Report
from evalsuite.reports.run import Benchmark


@dataclass(frozen=True, slots=True)
class BenchmarkCell:
    """One score with its change from the teacher and the key of its samples."""

    text: str
    change: str
    kind: str
    """`loss` or `gain` if significant, `tie` if not, `none` without a comparison, `incomplete`."""
    key: str
    hint: str
    sort: float | None

    @property
    def is_measured(self) -> bool:
        """Whether there is a score, or a part of its documents."""
        return bool(self.key) or self.kind == "incomplete"


NOTHING = BenchmarkCell(formatting.NOTHING, "", "none", "", "", None)


@dataclass(frozen=True, slots=True)
class BenchmarkColumn:
    """One benchmark under one protocol."""

    benchmark: Benchmark
    protocol: str
    hint: str
    is_informative: bool
    """For at least one teacher."""
    cells: Mapping[int, BenchmarkCell]
    """By checkpoint."""

    @property
    def is_perplexity(self) -> bool:
        """Whether lower is better."""
        return self.benchmark.protocols[self.protocol].direction == "lower"  # type: ignore[index]

    def is_in(self, protocol: str, scope: str) -> bool:
        """Whether a view shows this column."""
        if protocol != self.protocol:
            return False
        return self.is_informative if scope == INFORMATIVE else scope in (ALL, self.benchmark.category)

    def cell(self, checkpoint: int) -> BenchmarkCell:
        """The cell of a checkpoint."""
        return self.cells.get(checkpoint, NOTHING)


def benchmark_columns(report: Report) -> list[BenchmarkColumn]:
    """A column for every benchmark with a score under a protocol, by protocol in the order of the plan."""
    scores: dict[tuple[str, str], dict[int, list[BenchmarkRow]]] = {}
    for row in report.scores:
        scores.setdefault((row.benchmark, row.protocol), {}).setdefault(row.checkpoint, []).append(row)
    drops = {(row.checkpoint, row.benchmark, row.protocol): row for row in report.drops}
    informative = {(row.benchmark, row.protocol) for row in report.informative if row.is_informative}
    columns = []
    for protocol in report.protocols:
        started = report.started(protocol)
        for benchmark in report.benchmarks:
            if benchmark.name not in started:
                continue
            rows = scores.get((benchmark.name, protocol), {})
            cells = {
                i: _cell(
                    report, i, benchmark, protocol, rows.get(i, []), drops.get((i, benchmark.name, protocol))
                )
                for i in range(len(report.checkpoints))
            }
            columns.append(
                BenchmarkColumn(
                    benchmark,
                    protocol,
                    _hint(benchmark, protocol),
                    (benchmark.name, protocol) in informative,
                    cells,
                )
            )
    return columns


def _cell(
    report: Report,
    checkpoint: int,
    benchmark: Benchmark,
    protocol: str,
    rows: list[BenchmarkRow],
    found: DropRow | None,
) -> BenchmarkCell:
    if incomplete := report.incomplete(checkpoint, benchmark.name, protocol):
        text = formatting.coverage(*incomplete)
        return BenchmarkCell(text, "", "incomplete", "", f"{text} documents, not measured", None)
    if not rows:
        return NOTHING
    how = benchmark.protocols[protocol]  # type: ignore[index]  # the keys are the protocol names
    context = "*" if any(row.context is not None for row in rows) else ""
    key = f"{checkpoint}|{benchmark.name}|{protocol}|{context}"
    if how.direction == "lower":
        return _perplexity_cell(rows[0], found, key)
    score = sum(row.score.point for row in rows) / len(rows)
    sort = round(score, 6)
    if found is None or any(row.drop is None for row in rows):
        return BenchmarkCell(formatting.percent(score), "", "none", key, "", sort)
    change = formatting.signed(-100 * found.drop.point)
    hint = f"{change} ({formatting.span(found.drop.scaled(-1))}) vs. the teacher"
    return BenchmarkCell(formatting.percent(score), change, found.kind, key, hint, sort)


def _perplexity_cell(row: BenchmarkRow, found: DropRow | None, key: str) -> BenchmarkCell:
    level, sort = f"{row.score.point:.3f}", round(row.score.point, 6)
    if found is None:
        return BenchmarkCell(level, "", "none", key, "", sort)
    change = formatting.signed(found.drop.point, 3)
    hint = f"{change} ({formatting.span(found.drop, 1, 3)}) nats vs. the teacher"
    return BenchmarkCell(level, change, found.kind, key, hint, sort)


def _hint(benchmark: Benchmark, protocol: str) -> str:
    how = benchmark.protocols[protocol]  # type: ignore[index]
    if how.direction == "lower":
        return f"log-perplexity per {(how.units or 'document').rstrip('s')}, lower is better"
    few_shot = f"{how.num_fewshot}-shot, " if how.num_fewshot else ""
    contexts = f", mean of {counted(len(benchmark.contexts), 'context')}" if benchmark.contexts else ""
    return f"{few_shot}{how.metric}{contexts}"
