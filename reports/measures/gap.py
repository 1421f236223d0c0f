"""Log-likelihood vs. generation: scores under both, failure modes in generation, rank changes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from markupsafe import Markup

from evalsuite.foundation import counted
from evalsuite.foundation.taxonomy import FAILURES, OUTCOME_MEANINGS, OUTCOMES, PROTOCOLS
from evalsuite.reports import formatting
from evalsuite.reports.analysis.gaps import GapPool
from evalsuite.reports.analysis.rows import Agreement, GapRow
from evalsuite.reports.analysis.scopes import ALL
from evalsuite.reports.analysis.warnings import teachers_below_chance
from evalsuite.reports.figures.axes import Axis, nice_axis
from evalsuite.reports.figures.figure import Figure, Values
from evalsuite.reports.figures.plots import Slope, slopes
from evalsuite.reports.figures.row_charts import Dumbbell, Share, axis_mark, dumbbells, stack
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.measures.leaderboard import Entry
from evalsuite.reports.measures.papers.tables import paper_gap_sentence
from evalsuite.reports.report import Report
from evalsuite.reports.rules.evidence import NO_TEACHER, SHOWN, Evidence, matches, missing
from evalsuite.reports.rules.measurement import Measurement, NotMeasured
from evalsuite.reports.rules.metric import RuleMetric
from evalsuite.reports.rules.rule import Rule
from evalsuite.reports.section import section
from evalsuite.reports.statistics.power import gap_margin
from evalsuite.reports.table import CSV, Column, Table, Value, label_column, teacher_column, weights_column


@dataclass(frozen=True, slots=True)
class GapLine:
    """One benchmark of one student."""

    title: str
    about: str
    dumbbells: Markup
    drop_loglikelihood: str
    drop_generation: str
    gap: str
    interval: str
    kind: str
    """`loss`, `gain` or `tie`."""
    key: str
    counts: tuple[tuple[str, tuple[str, ...]], ...]
    """Model → documents correct under both, log-likelihood only, generation only, neither."""


@dataclass(frozen=True, slots=True)
class GapTable:
    """One student."""

    checkpoint: int
    label: str
    lines: tuple[GapLine, ...]
    total: GapLine | None


@dataclass(frozen=True, slots=True)
class FailureLine:
    """How the generated responses of one checkpoint end."""

    label: str
    role: str
    bar: Markup
    shares: tuple[str, ...]
    explained: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RankView:
    """Ranks under both protocols and the pairs whose order differs."""

    sentence: str
    figure: Figure
    inversions: tuple[str, ...]
    """One sentence each, significant ones first."""


@dataclass(frozen=True, slots=True)
class GapView:
    """The section."""

    axis: Markup
    tables: tuple[GapTable, ...]
    chosen: int
    """Index of the student shown first: the one with the largest gap."""
    failures: tuple[FailureLine, ...]
    ranks: tuple[RankView, ...]
    caption: str


def gap_view(report: Report) -> GapView | None:
    """The section; None if no benchmark has both protocols."""
    if not report.gaps:
        return None
    levels = [100 * v for row in report.gaps for v in (*row.loglikelihood.values(), *row.generation.values())]
    axis = nice_axis(levels, include=[0.0, 100.0], steps=4)
    checkpoints = list(dict.fromkeys(row.checkpoint for row in report.gaps))
    tables = tuple(_table(report, checkpoint, axis) for checkpoint in checkpoints)
    totals = [row for row in report.gaps if row.benchmark == ALL]
    benchmarks = {row.benchmark for row in report.gaps} - {ALL}
    documents = max(row.documents for row in totals)
    return GapView(
        axis=axis_mark(axis, 5),
        tables=tables,
        chosen=max(totals, key=lambda row: row.gap.point).checkpoint,
        failures=tuple(_failures(report, totals)),
        ranks=tuple(_ranks(report)),
        caption=" ".join(
            (
                f"{counted(documents, 'document')} of {counted(len(benchmarks), 'benchmark')} "
                "were evaluated under both protocols. Each "
                "line runs from the teacher (ring) to the student (disc); columns show the change in points. "
                "The gap is the drop under generation minus the drop under log-likelihood.",
                *teachers_below_chance(report.checkpoints, report.gaps),
            )
        ),
    )


def _table(report: Report, checkpoint: int, axis: Axis) -> GapTable:
    rows = [row for row in report.gaps if row.checkpoint == checkpoint]
    lines = tuple(_line(report, row, axis) for row in rows if row.benchmark != ALL)
    total = next((_line(report, row, axis) for row in rows if row.benchmark == ALL), None)
    return GapTable(
        checkpoint, report.checkpoints[checkpoint].label, lines, total if len(lines) > 1 else None
    )


def _line(report: Report, row: GapRow, axis: Axis) -> GapLine:
    titles = {benchmark.name: benchmark.title for benchmark in report.benchmarks}
    title = titles.get(row.benchmark, "Average")
    if row.context is not None:
        title += f", {formatting.tokens(row.context)}"
    pairs = [
        Dumbbell(
            protocol,
            100 * levels["teacher"],
            100 * levels["student"],
            f"{formatting.PROTOCOL_TITLES[protocol]}: teacher {formatting.percent(levels['teacher'])}, "
            f"student {formatting.percent(levels['student'])}",
        )
        for protocol, levels in (("loglikelihood", row.loglikelihood), ("generation", row.generation))
    ]
    return GapLine(
        title=title,
        about=counted(row.documents, "document"),
        dumbbells=dumbbells(pairs, axis),
        drop_loglikelihood=formatting.signed(-100 * row.drop_loglikelihood.point),
        drop_generation=formatting.signed(-100 * row.drop_generation.point),
        gap=formatting.signed(100 * row.gap.point),
        interval=formatting.span(row.gap),
        kind=row.kind,
        key="" if row.benchmark == ALL else f"gap|{row.checkpoint}|{row.benchmark}|{row.context or ''}",
        counts=tuple(
            (who, tuple(formatting.count(round(number)) for number in row.right[who]))
            for who in ("teacher", "student")
        ),
    )


def _failures(report: Report, totals: Sequence[GapRow]) -> list[FailureLine]:
    """Outcomes of generated responses on the shared documents: each teacher, then its students."""
    lines = []
    teachers: set[int] = set()
    for row in totals:
        teacher = report.checkpoints[row.checkpoint].teacher
        if teacher is not None and teacher not in teachers:
            teachers.add(teacher)
            lines.append(
                _failure(report.checkpoints[teacher].label, "teacher", row, ("",) * (len(FAILURES) + 1))
            )
        explained = tuple(
            formatting.NOTHING
            if row.explained[name] is None
            else formatting.signed(100 * (row.explained[name] or 0.0))
            for name in (*FAILURES, "any")
        )
        lines.append(_failure(report.checkpoints[row.checkpoint].label, "student", row, explained))
    return lines


def _failure(label: str, who: str, row: GapRow, explained: tuple[str, ...]) -> FailureLine:
    outcomes, correct = row.outcomes[who], row.generation[who]
    failed = {name: outcomes[name] for name in FAILURES}
    # A guessed or truncated response may still be correct; the shares must add up to 1.
    wrong = max(0.0, 1.0 - correct - sum(failed.values()))
    correct = 1.0 - wrong - sum(failed.values())
    shares = [Share("correct", correct, "correct"), Share("wrong", wrong, "wrong answer")]
    shares += [Share(name, failed[name], OUTCOME_MEANINGS[name].title) for name in FAILURES]
    return FailureLine(
        label=label,
        role=who,
        bar=stack(shares),
        shares=tuple(formatting.percent(failed[name]) for name in FAILURES),
        explained=explained,
    )


def _ranks(report: Report) -> list[RankView]:
    """Rank changes on the shared documents and, if the teacher is at chance there, over all benchmarks."""
    found = []
    if (agreement := report.agreement) is not None and len(agreement.checkpoints) > 1:
        rows = {row.checkpoint: row for row in report.gaps if row.benchmark == ALL}
        left = {s: rows[s].loglikelihood["student"] for s in agreement.checkpoints}
        right = {s: rows[s].generation["student"] for s in agreement.checkpoints}
        about = "Scores are averages over the benchmarks with both protocols."
        found.append(_rank_view(report, agreement, left, right, about))
    if (agreement := report.agreement_over_all) is not None:
        points = []
        for protocol in PROTOCOLS:
            averages = {s: report.average(s, protocol) for s in agreement.checkpoints}
            points.append({s: row.recovery.point or 0.0 for s, row in averages.items() if row is not None})
        about = "Scores are recoveries over all benchmarks of each protocol."
        found.append(_rank_view(report, agreement, points[0], points[1], about))
    return found


def _rank_view(
    report: Report,
    agreement: Agreement,
    left: Mapping[int, float],
    right: Mapping[int, float],
    about: str,
) -> RankView:
    checkpoints = agreement.checkpoints
    by_loglikelihood = sorted(checkpoints, key=lambda s: -left[s])
    by_generation = sorted(checkpoints, key=lambda s: -right[s])
    label_of = {checkpoint: report.checkpoints[checkpoint].label for checkpoint in checkpoints}
    tau = "" if agreement.tau is None else f" (Kendall τ = {formatting.plain(agreement.tau, 2)})"
    proven = sum(inversion.proven for inversion in agreement.inversions)
    sentence = f"{len(agreement.inversions)} of {agreement.pairs} student pairs change order{tau}"
    if agreement.inversions:
        sentence += (
            f"; {proven or 'none'} of the changes {'is' if proven == 1 else 'are'} significant under both "
            "protocols."
        )
    else:
        sentence += "."
    lines = [
        Slope(
            label_of[s],
            by_loglikelihood.index(s),
            by_generation.index(s),
            formatting.percent(left[s]),
            formatting.percent(right[s]),
        )
        for s in by_loglikelihood
    ]
    return RankView(
        sentence=f"{sentence} {about}",
        figure=slopes(
            lines,
            ("log-likelihood, %", "generation, %"),
            title="Rank under each protocol",
            caption="Blue: a better rank under generation; orange: a worse one.",
            table=Values(
                ("model", "log-likelihood, %", "rank", "generation, %", "rank"),
                tuple(
                    (each.label, each.left_text, str(each.left + 1), each.right_text, str(each.right + 1))
                    for each in lines
                ),
            ),
        ),
        inversions=tuple(
            f"{label_of[i.loglikelihood_above]} is {100 * i.difference_loglikelihood:.1f} points above "
            f"{label_of[i.generation_above]} under log-likelihood, "
            f"{100 * i.difference_generation:.1f} below under generation"
            f"{' (both significant)' if i.proven else ''}."
            for i in sorted(agreement.inversions, key=lambda inversion: not inversion.proven)
        ),
    )


@dataclass(frozen=True, slots=True)
class GapSection:
    """The section."""

    gap: GapView
    paper: str
    """The gap of a paper on the same benchmarks, as a sentence."""


@section("gap", "Log-likelihood vs. generation", order=30, template="sections/gap.html.j2")
def gap_section(report: Report) -> GapSection | None:
    """The gap between the protocols; None if no benchmark has both."""
    gap = gap_view(report)
    return None if gap is None else GapSection(gap, paper_gap_sentence(report))


CORRECT = ("correct_both", "correct_loglikelihood_only", "correct_generation_only", "correct_neither")


def _right(who: str, at: int, report: Report, row: GapRow) -> Value:
    return row.right[who][at]


def _share(who: str, outcome: str, report: Report, row: GapRow) -> Value:
    return row.outcomes[who][outcome]


def _explained(outcome: str, report: Report, row: GapRow) -> Value:
    return row.explained[outcome]


def _change(protocol: str, report: Report, row: GapRow) -> str:
    """Student − teacher."""
    drop = row.drop_loglikelihood if protocol == "loglikelihood" else row.drop_generation
    return formatting.signed(-100 * drop.point)


def _level(who: str, protocol: str, report: Report, row: GapRow) -> Value:
    return (row.loglikelihood if protocol == "loglikelihood" else row.generation)[who]


def _columns_of(who: str) -> Iterator[Column[GapRow]]:
    """Scores, documents correct and outcomes of the teacher or the student."""
    for protocol in ("loglikelihood", "generation"):
        value = partial(_level, who, protocol)
        yield Column(f"{who}_{protocol}", value=value, unit="percent", outputs=CSV)
    for at, name in enumerate(CORRECT):
        yield Column(f"{who}_{name}", value=partial(_right, who, at), outputs=CSV)
    for outcome in OUTCOMES:
        value = partial(_share, who, outcome)
        yield Column(f"{who}_share_{outcome}", value=value, unit="percent", outputs=CSV)


GAP: Table[GapRow] = Table(
    name="gap",
    title="Log-likelihood vs. generation",
    rows=lambda report: report.gaps,
    json="gaps",
    columns=(
        label_column(),
        weights_column(),
        teacher_column(),
        Column("benchmark", unit="text", outputs=CSV),
        Column("context", outputs=CSV),
        Column("documents", outputs=CSV),
        Column("gap", kind="interval", unit="points"),
        *(
            Column(
                f"drop_{protocol}",
                formatting.PROTOCOL_TITLES[protocol],
                kind="interval",
                unit="points",
                show=partial(_change, protocol),
            )
            for protocol in PROTOCOLS
        ),
        *_columns_of("teacher"),
        *_columns_of("student"),
        *(
            Column(f"explained_{name}", value=partial(_explained, name), unit="points", outputs=CSV)
            for name in FAILURES
        ),
        Column(
            "explained_any",
            "explained by extraction failures, truncation and loops",
            value=partial(_explained, "any"),
            unit="points",
            outputs=("csv", "markdown"),
        ),
    ),
)


def _measured(
    evidence: Evidence, rule: Rule, protocol: str | None, checkpoint: int
) -> Measurement | NotMeasured:
    """Drop under generation − drop under log-likelihood, in points."""
    pool, tensor = evidence.of(GapPool), evidence.tensor
    teacher = tensor.checkpoints[checkpoint].teacher
    if teacher is None:
        return NO_TEACHER
    needed = [checkpoint, teacher]
    chosen = [i for i in pool.answered(needed) if matches(rule, pool.protocol_pairs[i].loglikelihood)]
    there = {pool.protocol_pairs[i].loglikelihood.key for i in chosen}
    there |= {pool.protocol_pairs[i].generation.key for i in chosen}
    lacking = [missing(rule, tensor, name, needed, there, PROTOCOLS) for name in PROTOCOLS]
    if any(lacking):
        return NotMeasured("; ".join(filter(None, lacking)))
    if not chosen:
        what = rule.benchmark or rule.category or "nothing"
        return NotMeasured(f"{what}: not evaluated under both protocols on the same documents")
    data = pool.of(chosen)
    look_at = []
    for i in chosen:
        pair = pool.protocol_pairs[i]
        loglikelihood, generation = pair.scores(checkpoint)
        for position in np.flatnonzero((loglikelihood >= 0.5) & (generation < 0.5)):
            document = pair.loglikelihood.documents[pair.in_loglikelihood[position]]
            look_at.append(f"{pair.loglikelihood.benchmark.name}/{document}")
    gap = data.contrast(pool.gap(checkpoint, teacher)).scaled(100)
    return Measurement(gap, data.documents, tuple(look_at[:SHOWN]))


_METRIC = RuleMetric(
    measure=_measured,
    bound="max",
    unit="points",
    hint="gap between the protocols, in points, e.g. 5",
    has_option=True,
    protocols="both",
    unchanged=0.0,
    planned=gap_margin,
)
COLUMN: Column[Entry] = Column(
    "gap",
    title="gap",
    hint="Drop under generation − drop under log-likelihood, on documents with both.",
    value=lambda report, entry: None if (row := report.gap(entry.checkpoint)) is None else row.gap,
    kind="interval",
    unit="points",
    better="lower",
    outputs=("markdown",),
)
MEASURES.add("gap", Measure(tables=(GAP,), columns=(COLUMN,), metrics={"gap": _METRIC}))
