"""The recovery table of the page: one view per protocol and scope."""

from dataclasses import dataclass

from markupsafe import Markup

from evalsuite.reports import words
from evalsuite.reports.analysis.averages import order
from evalsuite.reports.analysis.rows import AverageRow, ScoreRow
from evalsuite.reports.analysis.scopes import ALL
from evalsuite.reports.lineage import lineage_of
from evalsuite.reports.page.axes import Axis, nice_axis
from evalsuite.reports.page.marks import axis_mark, interval_mark
from evalsuite.reports.report import Report
from evalsuite.reports.run_folder import CATEGORIES, BenchmarkPlan
from evalsuite.reports.statistics.interval import mean_of

SHORT = 60
"""An axis that would span more than this many points is drawn from 0."""


@dataclass(frozen=True, slots=True)
class Column:
    """One benchmark."""

    title: str
    hint: str
    is_perplexity: bool


@dataclass(frozen=True, slots=True)
class CellView:
    """One number with what it lost, and the key of its drill-down."""

    text: str
    change: str
    kind: str
    """`loss` or `gain` where proven, `tie` where not, `none` where there is nothing."""
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
    centred: str
    centred_hint: str
    centred_sort: float | None
    win_and_tie: str
    win_and_tie_sort: float | None
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
    """A view for every protocol and scope that has averages, or perplexities alone."""
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
    scores = {
        (row.subject, row.benchmark): [
            each
            for each in report.scores
            if (each.subject, each.benchmark) == (row.subject, row.benchmark) and each.protocol == protocol
        ]
        for row in report.scores
        if row.protocol == protocol
    }
    benchmarks = [b for b in benchmarks if any(name == b.name for _, name in scores)]
    if not benchmarks:
        return None
    averages = {row.subject: row for row in report.averages if (row.protocol, row.scope) == (protocol, scope)}
    axis = _axis(list(averages.values()))

    def row(subject: int) -> RowView:
        cells = tuple(
            _cell(report, subject, b, protocol, scores.get((subject, b.name), [])) for b in benchmarks
        )
        return _row(report, subject, averages.get(subject), axis, cells)

    groups = []
    for teacher in report.teachers:
        students = report.students(teacher)
        ranked = [r.subject for r in order([averages[s] for s in students if s in averages])]
        ranked += [
            s for s in students if s not in averages and any((s, b.name) in scores for b in benchmarks)
        ]
        groups.append(Group(row(teacher), tuple(row(s) for s in ranked)))
    orphans = [row(i) for i, s in enumerate(report.subjects) if s.teacher is None and not s.is_teacher]
    return RecoveryView(
        protocol=protocol,
        scope=scope,
        title=words.CATEGORY_TITLES[scope],
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
    report: Report, subject: int, average: AverageRow | None, axis: Axis | None, cells: tuple[CellView, ...]
) -> RowView:
    plan = report.subjects[subject].plan
    interval = average.recovery.interval if average else None
    label = report.subjects[subject].label
    mark = Markup("")
    if interval is not None and axis is not None:
        said = f"{words.percent(interval.point)} per cent, 95 % interval {words.span(interval)}"
        mark = interval_mark(interval.scaled(100), axis, said, reference=100.0)
    lineage = lineage_of(plan)
    about = [lineage.describe_mixers(), words.parameters(plan.parameters)]
    if not lineage.complete and lineage.tokens:
        about.append(f"after {words.tokens(lineage.tokens)} tokens")
    if average and average.missing:
        about.append(f"not ranked: lacks {', '.join(average.missing)}")
    is_student = report.subjects[subject].teacher is not None
    return RowView(
        rank=words.rank(average) if average else "",
        rank_sort=average.rank if average else None,
        label=label,
        about=" · ".join(part for part in about if part),
        recovery=words.percent(interval.point) if interval else ("100" if not is_student else words.NOTHING),
        interval=words.span(interval) if interval else "",
        recovery_sort=interval.point if interval else None,
        mark=mark,
        why=average.recovery.why if average and is_student else "",
        centred=words.percent(average.centred.point) if average and is_student else "",
        centred_hint=_centred_hint(average) if average and is_student else "",
        centred_sort=average.centred.point if average else None,
        win_and_tie=words.percent(average.win_and_tie) if average and is_student else "",
        win_and_tie_sort=average.win_and_tie if average else None,
        cells=cells,
    )


def _centred_hint(average: AverageRow) -> str:
    if average.centred.interval is None:
        return average.centred.why
    return f"95 % interval {words.span(average.centred.interval)}"


def _cell(
    report: Report, subject: int, benchmark: BenchmarkPlan, protocol: str, rows: list[ScoreRow]
) -> CellView:
    if not rows:
        return CellView(words.NOTHING, "", "none", "", "not answered", None)
    how = benchmark.protocols[protocol]  # type: ignore[index]  # the keys are these very texts
    context = "*" if any(row.context is not None for row in rows) else ""
    key = f"{subject}|{benchmark.name}|{protocol}|{context}"
    label = report.subjects[subject].label
    if how.direction == "lower":
        return _perplexity_cell(rows[0], key, label, benchmark.title)
    score = sum(row.score.point for row in rows) / len(rows)
    deficits = [row.deficit for row in rows if row.deficit is not None]
    if len(deficits) < len(rows):
        hint = f"{label}, {benchmark.title}: {words.percent(score)}"
        return CellView(words.percent(score), "", "none", key, hint, score)
    deficit = mean_of(deficits)
    kind = "loss" if deficit.low > 0 else "gain" if deficit.high < 0 else "tie"
    change = words.signed(-100 * deficit.point)
    hint = f"{label}, {benchmark.title}: {words.percent(score)}, {change} beside the teacher"
    hint += f" (95 % interval {words.span(deficit.scaled(-1))})"
    return CellView(words.percent(score), change, kind, key, hint, score)


def _perplexity_cell(row: ScoreRow, key: str, label: str, title: str) -> CellView:
    level = f"{row.score.point:.3f}"
    if row.deficit is None:
        return CellView(level, "", "none", key, f"{label}, {title}: log-perplexity {level}", row.score.point)
    change = words.signed(row.deficit.point, 3)
    kind = "loss" if row.deficit.low > 0 else "gain" if row.deficit.high < 0 else "tie"
    hint = f"{label}, {title}: log-perplexity {level}, {change} nats (95 % {words.span(row.deficit, 1, 3)})"
    return CellView(level, change, kind, key, hint, row.score.point)


def _column(benchmark: BenchmarkPlan, protocol: str) -> Column:
    how = benchmark.protocols[protocol]  # type: ignore[index]
    shots = f"{how.shots}-shot, " if how.shots else ""
    hint = f"{shots}{how.metric}"
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
    documents = sum(
        len(cell.documents)
        for cell in report.panel.cells
        if cell.protocol == protocol and any(cell.benchmark.name == b.name for b in counted)
    )
    if not counted:
        return "Log-perplexities and their change beside the teacher, in nats. They enter no recovery."
    what = "one benchmark" if len(counted) == 1 else f"{len(counted)} benchmarks"
    groups = {b.group for b in counted if b.group}
    weights = "" if len(counted) == 1 else ", each with the same weight"
    units = len({b.group or b.name for b in counted})
    if groups and units > 1:
        weights += f" ({' and '.join(sorted(groups))} together as one)"
    how = (
        "answers ranked by log-likelihood" if protocol == "loglikelihood" else "answers written and extracted"
    )
    return (
        f"Student score ÷ teacher score over the same {words.count(documents)} questions of {what}{weights}; "
        f"{how}. The bar is the 95 % interval of a paired bootstrap over documents."
    )
