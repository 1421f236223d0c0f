"""Recovery tables: one view per protocol and scope."""

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from evalsuite.foundation.taxonomy import CATEGORIES
from evalsuite.reports import formatting
from evalsuite.reports.analysis import findings
from evalsuite.reports.analysis.averages import order
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.analysis.rows import AverageRow, BenchmarkRow, DropRow
from evalsuite.reports.analysis.scopes import ALL
from evalsuite.reports.page.axes import Axis, nice_axis
from evalsuite.reports.page.row_charts import axis_mark, interval_mark
from evalsuite.reports.page.section import section
from evalsuite.reports.records.run_folder import BenchmarkPlan
from evalsuite.reports.report import Report

SHORT = 60
"""Recovery axes that would span more points than this start at 0."""


@dataclass(frozen=True, slots=True)
class Column:
    """One benchmark."""

    title: str
    hint: str
    is_perplexity: bool


@dataclass(frozen=True, slots=True)
class CellView:
    """One score with its change from the teacher and the key of its drill-down."""

    text: str
    change: str
    kind: str
    """`loss` or `gain` if significant, `tie` if not, `none` without a comparison, `incomplete`."""
    key: str
    hint: str
    sort: float | None


@dataclass(frozen=True, slots=True)
class RowView:
    """One checkpoint."""

    rank: str
    rank_sort: float | None
    label: str
    about: str
    recovery: str
    interval: str
    recovery_sort: float | None
    mark: Markup
    why: str
    chance_normalized: str
    chance_normalized_hint: str
    chance_normalized_sort: float | None
    win_or_tie: str
    win_or_tie_sort: float | None
    cells: tuple[CellView, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A teacher with its students."""

    teacher: RowView
    students: tuple[RowView, ...]


@dataclass(frozen=True, slots=True)
class RecoveryView:
    """One table."""

    protocol: str
    scope: str
    title: str
    caption: str
    axis: Markup
    columns: tuple[Column, ...]
    groups: tuple[Group, ...]
    orphans: tuple[RowView, ...]
    """Checkpoints without a teacher."""


def recovery_views(report: Report) -> list[RecoveryView]:
    """A view for every protocol and scope with scores; perplexities alone suffice."""
    views = []
    for protocol in report.protocols:
        for scope in (ALL, *CATEGORIES):
            view = _view(report, protocol, scope)
            if view is not None:
                views.append(view)
    return views


def _view(report: Report, protocol: str, scope: str) -> RecoveryView | None:
    benchmarks = [
        benchmark
        for benchmark in report.benchmarks
        if protocol in benchmark.protocols and scope in (ALL, benchmark.category)
    ]
    scores: dict[tuple[int, str], list[BenchmarkRow]] = {}
    for each in report.scores:
        if each.protocol == protocol:
            scores.setdefault((each.checkpoint, each.benchmark), []).append(each)
    drops = {(r.checkpoint, r.benchmark): r for r in report.drops if r.protocol == protocol}
    started = report.started(protocol)
    benchmarks = [b for b in benchmarks if b.name in started]
    if not benchmarks:
        return None
    averages = {
        row.checkpoint: row for row in report.averages if (row.protocol, row.scope) == (protocol, scope)
    }
    axis = _axis(list(averages.values()))

    def row(checkpoint: int) -> RowView:
        cells = tuple(
            _cell(report, checkpoint, b, protocol, scores.get((checkpoint, b.name), []), drops)
            for b in benchmarks
        )
        return _row(report, checkpoint, averages.get(checkpoint), axis, cells)

    groups = []
    for teacher in report.teachers:
        students = report.students(teacher)
        in_order = [r.checkpoint for r in order([averages[s] for s in students if s in averages])]
        in_order += [
            s
            for s in students
            if s not in averages
            and any((s, b.name) in scores or report.incomplete(s, b.name, protocol) for b in benchmarks)
        ]
        groups.append(Group(row(teacher), tuple(row(s) for s in in_order)))
    orphans = [row(i) for i, s in enumerate(report.checkpoints) if s.teacher is None and not s.is_teacher]
    return RecoveryView(
        protocol=protocol,
        scope=scope,
        title=formatting.CATEGORY_TITLES[scope],
        caption=_caption(report, benchmarks, averages, protocol, scope),
        axis=axis_mark(axis) if axis else Markup(""),
        columns=tuple(_column(b, protocol) for b in benchmarks),
        groups=tuple(groups),
        orphans=tuple(orphans),
    )


def _axis(rows: list[AverageRow]) -> Axis | None:
    intervals = [row.recovery.interval for row in rows if row.recovery.interval is not None]
    if not intervals:
        return None
    ends = [100 * end for interval in intervals for end in (interval.low, interval.high)]
    include = [100.0] if max(ends) - min(ends) < SHORT and min(ends) > 100 - SHORT else [0.0, 100.0]
    return nice_axis(ends, include=include, steps=6)


def _row(
    report: Report,
    checkpoint: int,
    average: AverageRow | None,
    axis: Axis | None,
    cells: tuple[CellView, ...],
) -> RowView:
    plan = report.checkpoints[checkpoint].plan
    interval = average.recovery.interval if average else None
    label = report.checkpoints[checkpoint].label
    mark = Markup("")
    if interval is not None and axis is not None:
        mark_label = (
            f"{formatting.percent(interval.point)} percent, 95 % interval {formatting.span(interval)}"
        )
        mark = interval_mark(interval.scaled(100), axis, mark_label, reference=100.0)
    lineage = lineage_of(plan)
    about = [lineage.describe_mixers(), formatting.parameters(plan.parameters)]
    if not lineage.complete and lineage.tokens:
        about.append(f"after {formatting.tokens(lineage.tokens)} tokens")
    if average and average.missing:
        about.append(f"incomplete, no rank: missing {', '.join(average.missing)}")
    is_student = report.checkpoints[checkpoint].teacher is not None
    return RowView(
        rank=formatting.rank(average) if average else "",
        rank_sort=average.rank if average else None,
        label=label,
        about=" · ".join(part for part in about if part),
        recovery=formatting.percent(interval.point)
        if interval
        else ("100" if not is_student else formatting.NOTHING),
        interval=formatting.span(interval) if interval else "",
        recovery_sort=interval.point if interval else None,
        mark=mark,
        why=average.recovery.why if average and is_student else "",
        chance_normalized=formatting.percent(average.chance_normalized_recovery.point)
        if average and is_student
        else "",
        chance_normalized_hint=_chance_normalized_hint(average) if average and is_student else "",
        chance_normalized_sort=average.chance_normalized_recovery.point if average else None,
        win_or_tie=formatting.percent(average.win_or_tie_rate) if average and is_student else "",
        win_or_tie_sort=average.win_or_tie_rate if average else None,
        cells=cells,
    )


def _chance_normalized_hint(average: AverageRow) -> str:
    if average.chance_normalized_recovery.interval is None:
        return average.chance_normalized_recovery.why
    return f"95 % interval {formatting.span(average.chance_normalized_recovery.interval)}"


def _cell(
    report: Report,
    checkpoint: int,
    benchmark: BenchmarkPlan,
    protocol: str,
    rows: list[BenchmarkRow],
    drops: Mapping[tuple[int, str], DropRow],
) -> CellView:
    if incomplete := report.incomplete(checkpoint, benchmark.name, protocol):
        text = formatting.coverage(*incomplete)
        hint = f"{report.checkpoints[checkpoint].label}, {benchmark.title}: {text} documents, not measured"
        return CellView(text, "", "incomplete", "", hint, None)
    if not rows:
        return CellView(formatting.NOTHING, "", "none", "", "no scores", None)
    found = drops.get((checkpoint, benchmark.name))
    how = benchmark.protocols[protocol]  # type: ignore[index]  # the keys are the protocol names
    context = "*" if any(row.context is not None for row in rows) else ""
    key = f"{checkpoint}|{benchmark.name}|{protocol}|{context}"
    label = report.checkpoints[checkpoint].label
    if how.direction == "lower":
        return _perplexity_cell(rows[0], found, key, label, benchmark.title)
    score = sum(row.score.point for row in rows) / len(rows)
    if found is None or any(row.drop is None for row in rows):
        hint = f"{label}, {benchmark.title}: {formatting.percent(score)}"
        return CellView(formatting.percent(score), "", "none", key, hint, score)
    change = formatting.signed(-100 * found.drop.point)
    hint = f"{label}, {benchmark.title}: {formatting.percent(score)}, {change} vs. the teacher"
    hint += f" (95 % interval {formatting.span(found.drop.scaled(-1))})"
    return CellView(formatting.percent(score), change, found.kind, key, hint, score)


def _perplexity_cell(row: BenchmarkRow, found: DropRow | None, key: str, label: str, title: str) -> CellView:
    level = f"{row.score.point:.3f}"
    if found is None:
        return CellView(level, "", "none", key, f"{label}, {title}: log-perplexity {level}", row.score.point)
    change = formatting.signed(found.drop.point, 3)
    span = formatting.span(found.drop, 1, 3)
    hint = f"{label}, {title}: log-perplexity {level}, {change} nats (95 % {span})"
    return CellView(level, change, found.kind, key, hint, row.score.point)


def _column(benchmark: BenchmarkPlan, protocol: str) -> Column:
    how = benchmark.protocols[protocol]  # type: ignore[index]
    few_shot = f"{how.num_fewshot}-shot, " if how.num_fewshot else ""
    hint = f"{few_shot}{how.metric}"
    if benchmark.contexts:
        hint += f", mean of {len(benchmark.contexts)} contexts"
    if how.direction == "lower":
        hint = f"log-perplexity per {(how.units or 'document').rstrip('s')}, lower is better"
    return Column(benchmark.title, hint, how.direction == "lower")


def _caption(
    report: Report,
    benchmarks: list[BenchmarkPlan],
    averages: dict[int, AverageRow],
    protocol: str,
    scope: str,
) -> str:
    counted = [b for b in benchmarks if b.protocols[protocol].direction == "higher"]  # type: ignore[index]
    names = {b.name for b in counted}
    cells = [c for c in report.tensor.cells if c.protocol == protocol and c.benchmark.name in names]
    documents = sum({cell.key: len(cell.documents) for cell in cells}.values())
    partial = dict.fromkeys(
        f"{cell.benchmark.title} {formatting.coverage(len(cell.documents), cell.planned)}"
        for cell in cells
        if len(cell.documents) < cell.planned
    )
    if not counted:
        return "Log-perplexities and their change from the teacher, in nats. They do not enter recovery."
    what = "one benchmark" if len(counted) == 1 else f"{len(counted)} benchmarks"
    groups = {b.group for b in counted if b.group}
    weights = "" if len(counted) == 1 else ", weighted equally"
    units = len({b.group or b.name for b in counted})
    if groups and units > 1:
        weights += f" ({' and '.join(sorted(groups))} counts as one)"
    return (
        f"Student score ÷ teacher score under {formatting.PROTOCOL_TITLES[protocol]}, on the same "
        f"{formatting.count(documents)} documents of {what}{weights}. Bars are 95 % intervals from a paired "
        "bootstrap over documents (or their clusters). Changes are coloured if they are proven after Holm's "
        "correction over all students and benchmarks."
        + (f" Compared on a part of the planned documents: {', '.join(partial)}." if partial else "")
    )


@dataclass(frozen=True, slots=True)
class RecoverySection:
    """The section."""

    tables: list[RecoveryView]
    protocols: tuple[str, ...]
    scopes: list[tuple[str, str]]
    """Categories with benchmarks and their titles; empty if there is only one."""
    replicates: dict[str, list[str]]
    """Protocol → sentences about runs of one recipe."""


@section("recovery", "Teacher recovery", order=20, nav="Recovery")
def recovery_section(report: Report) -> RecoverySection:
    """Recovery by protocol and category."""
    found = {benchmark.category for benchmark in report.benchmarks}
    titles = formatting.CATEGORY_TITLES.items()
    return RecoverySection(
        tables=recovery_views(report),
        protocols=report.protocols,
        scopes=[(name, title) for name, title in titles if name in (ALL, *found)] if len(found) > 1 else [],
        replicates={
            protocol: findings.replicate_sentences(report, protocol) for protocol in report.protocols
        },
    )
