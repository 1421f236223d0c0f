"""Recall against recovery; heatmaps of recall by context length, and by task where there are no contexts."""

from collections.abc import Sequence
from dataclasses import dataclass

from evalsuite.reports import formatting
from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.analysis.measures.recall import (
    RecallCorrelation,
    RecallRow,
    against_recovery,
    recall_correlations,
    recall_rows,
)
from evalsuite.reports.analysis.rows import BenchmarkRow
from evalsuite.reports.analysis.scopes import INFORMATIVE
from evalsuite.reports.analysis.warnings import unread_contexts
from evalsuite.reports.blocks import Block, Part, Text, Texts, charts
from evalsuite.reports.figures.figure import Figure, Values
from evalsuite.reports.figures.plots import Axis, Mark, heatmap, scatter
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.records.merging import CellKey
from evalsuite.reports.report import Report, resampled
from evalsuite.reports.section import section
from evalsuite.reports.table import Column, Table, label_column, teacher_column, weights_column


def recall(report: Report) -> list[RecallRow]:
    """Recall numbers, by context and over the contexts."""
    return [row for pool in report.of(resampled).values() for row in recall_rows(pool)]


def correlations(report: Report) -> list[RecallCorrelation]:
    """Recovery under log-likelihood, where it is complete, against a recall number in generation."""
    recoveries = {
        row.checkpoint: point
        for row in report.averages
        if (row.protocol, row.scope) == ("loglikelihood", INFORMATIVE)
        and not row.missing
        and (point := row.recovery.point) is not None
    }
    return recall_correlations(report.tensor, report.of(recall), recoveries)


@dataclass(frozen=True, slots=True)
class HeatCell:
    """One score; `share` sets the shade, None marks an incomplete cell."""

    text: str
    share: float | None
    key: str
    """Key of the drill-down; empty for a mean."""
    hint: str


NUMBERS = (
    "Each number measures another ability, so they are not averaged; means over the context lengths, "
    "recovery with its 95 % interval."
)
BY_CONTEXT = (
    "Needles found, in percent, by context length in tokens. Hover for the 95 % interval; where the page has "
    "samples, click for the documents."
)
BEYOND = "†"
"""Marks scores that are out of distribution."""
Row = tuple[str, tuple[HeatCell | None, ...]]
"""Label of a checkpoint and its cells."""


def context_views(report: Report) -> list[Figure]:
    """One heatmap per benchmark with contexts and protocol."""
    views = []
    for benchmark in report.benchmarks:
        for protocol in benchmark.protocols:
            rows = [
                row
                for row in report.scores
                if (row.benchmark, row.protocol) == (benchmark.name, protocol) and row.context is not None
            ]
            if not rows:
                continue
            contexts = sorted({row.context for row in rows if row.context is not None})
            documents = max(row.documents for row in rows)
            views.append(
                _figure(
                    [formatting.tokens(context) for context in contexts],
                    _heat_rows(report, rows, (benchmark.name, protocol), contexts),
                    title=f"{benchmark.title}, {formatting.PROTOCOL_TITLES[protocol]}",
                    caption=_caption(documents, rows),
                    high=1.0,
                )
            )
    return views


def _caption(documents: int, rows: Sequence[BenchmarkRow]) -> str:
    text = f"{formatting.count(documents)} documents per context"
    if not any(row.out_of_distribution for row in rows):
        return text
    return f"{text}; {BEYOND} out of distribution, beyond the positions that the model's config states"


def _heat_rows(
    report: Report, rows: Sequence[BenchmarkRow], place: tuple[str, str], contexts: Sequence[int]
) -> list[Row]:
    found = {(row.checkpoint, row.context): row for row in rows}
    lines = []
    for i, checkpoint in enumerate(report.checkpoints):
        cells = tuple(
            _heat_cell(report, found.get((i, context))) or _incomplete_cell(report, i, (*place, context))
            for context in contexts
        )
        if any(cells):
            lines.append((checkpoint.label, cells))
    return lines


def _incomplete_cell(report: Report, checkpoint: int, key: CellKey) -> HeatCell | None:
    why = report.tensor.unread.get((checkpoint, key))
    if why is not None:
        return HeatCell("not read", None, "", f"{report.checkpoints[checkpoint].label} {why}")
    cell = report.tensor.unmeasured(checkpoint, key)
    if cell is None:
        return None
    text = formatting.coverage(cell.documents, cell.planned)
    return HeatCell(text, None, "", f"{report.checkpoints[checkpoint].label}: {text} documents, not measured")


def _heat_cell(report: Report, row: BenchmarkRow | None) -> HeatCell | None:
    if row is None:
        return None
    place = f" at {row.context:,} tokens" if row.context is not None else ""
    hint = (
        f"{report.checkpoints[row.checkpoint].label}{place}: {formatting.percent(row.score.point)} % "
        f"(95 % interval {formatting.span(row.score)})"
    )
    key = f"{row.checkpoint}|{row.benchmark}|{row.protocol}|{row.context or ''}"
    text = formatting.percent(row.score.point, 0 if row.context is not None else 1)
    if row.out_of_distribution:
        text, hint = f"{text} {BEYOND}", f"{hint}; out of distribution, beyond the stated positions"
    return HeatCell(text, round(row.score.point, 3), key, hint)


def _mean_cell(label: str, cells: Sequence[HeatCell | None]) -> HeatCell | None:
    """The mean of a row; None if a score is missing."""
    shares = [cell.share for cell in cells if cell is not None and cell.share is not None]
    if len(shares) < len(cells):
        return None
    mean = sum(shares) / len(shares)
    return HeatCell(formatting.percent(mean), mean, "", f"{label}: mean of {len(shares)} tasks")


def _figure(
    columns: Sequence[str],
    rows: Sequence[Row],
    *,
    title: str,
    caption: str,
    high: float,
    is_wide: bool = False,
) -> Figure:
    """Shares as shades of one color; a click opens the documents of a cell."""
    texts = [[cell.text if cell else formatting.NOTHING for cell in cells] for _, cells in rows]
    return heatmap(
        columns,
        [label for label, _ in rows],
        [[None if cell is None else cell.share for cell in cells] for _, cells in rows],
        title=title,
        caption=caption,
        texts=texts,
        hover=[[cell.hint if cell else "" for cell in cells] for _, cells in rows],
        low=0.0,
        high=high,
        trace={"meta": {"keys": [[cell.key if cell else "" for cell in cells] for _, cells in rows]}},
        table=Values(
            ("model", *columns),
            tuple((label, *line) for (label, _), line in zip(rows, texts, strict=True)),
        ),
        is_wide=is_wide,
    )


def task_views(report: Report) -> list[Figure]:
    """One heatmap of checkpoints and tasks for every recall number without contexts."""
    numbers = {
        name: number.title
        for benchmark in report.benchmarks
        if not benchmark.contexts
        for name, number in benchmark.recall.items()
    }
    views = [_task_view(report, name, title) for name, title in numbers.items()]
    return [view for view in views if view is not None]


def _task_view(report: Report, name: str, title: str) -> Figure | None:
    tasks = [b for b in report.benchmarks if name in b.recall and "generation" in b.protocols]
    rows = {(r.checkpoint, r.benchmark): r for r in report.scores if r.protocol == "generation"}
    tasks = [task for task in tasks if any(name == task.name for _, name in rows)]
    if not tasks:
        return None
    lines: list[Row] = []
    for i, checkpoint in enumerate(report.checkpoints):
        cells = tuple(
            _heat_cell(report, rows.get((i, task.name)))
            or _incomplete_cell(report, i, (task.name, "generation", None))
            for task in tasks
        )
        if any(cells):
            lines.append((checkpoint.label, (*cells, _mean_cell(checkpoint.label, cells))))
    return _figure(
        [*(task.title.removeprefix(f"{title} ") for task in tasks), "mean"],
        lines,
        title=title,
        caption=(
            "Each task in its own metric (F1, ROUGE-L, accuracy or edit similarity), in percent; the darkest "
            "shade is the highest score."
        ),
        high=max((cell.share or 0.0 for _, cells in lines for cell in cells if cell), default=0.0) or 1.0,
        is_wide=True,
    )


def recall_numbers(report: Report) -> Values | None:
    """Means over the contexts; three numbers, because one would hide which kind of recall is lost."""
    rows = {
        (row.checkpoint, row.kind, row.protocol): row
        for row in sorted(report.of(recall), key=lambda row: row.context is None)
    }
    titles = {row.kind: row.number.title for row in report.of(recall)}
    known = {key[1:] for key, row in rows.items() if row.score.interval is not None}
    places = [
        (kind, protocol) for kind in titles for protocol in report.protocols if (kind, protocol) in known
    ]
    if not places:
        return None
    columns = [f"{titles[kind]}, {formatting.PROTOCOL_TITLES[protocol]}" for kind, protocol in places]
    lines = []
    for i, checkpoint in enumerate(report.checkpoints):
        found = [rows.get((i, *place)) for place in places]
        if any(found):
            cells = [(row.score, row.recovery) if row else None for row in found]
            numbers = [text for cell in cells for text in (_estimate(cell, 0), _estimate(cell, 1))]
            lines.append((checkpoint.label, *numbers))
    heads = [text for column in columns for text in (f"{column}, %", "recovery, %")]
    return Values(("model", *heads), tuple(lines))


def _against_recovery(report: Report) -> Figure | None:
    """Students by recovery and a recall number in the shortest context; None for one student."""
    rows = [row for row in against_recovery(report.of(recall)) if row.context is not None]
    if not rows:
        return None
    title = rows[0].number.title
    shortest = min(row.context for row in rows if row.context is not None)
    found = {row.checkpoint: row for row in rows if row.context == shortest}
    averages = {s: report.average(s, "loglikelihood", INFORMATIVE) for s in report.students() if s in found}
    marks = []
    for student, average in averages.items():
        x, y = average and average.recovery.interval, found[student].score.interval
        if x and y:
            label = report.checkpoints[student].label
            recovery, share = formatting.estimate(Estimate(x)), formatting.estimate(Estimate(y))
            spoken = f"{label}: recovery {recovery} %, {title} {share} %"
            marks.append((Mark(label, x, y, spoken), (label, recovery, share)))
    if len(marks) < 2:
        return None
    teachers = [point for i in report.teachers if i in found and (point := found[i].score.point) is not None]
    teacher = teachers[0] if len(teachers) == 1 else None
    caption = (
        f"{title.capitalize()} in {formatting.tokens(shortest)} tokens that are found in generation, and "
        "recovery over the informative benchmarks: students of equal recovery can differ in recall."
    )
    caption += _correlation(report, shortest)
    if teacher is not None:
        caption += f" Dotted: the teacher, {formatting.percent(teacher)} %."
    return scatter(
        [mark for mark, _ in marks],
        Axis("recovery, log-likelihood, %"),
        Axis(f"{title} found, %", low=0),
        title=f"{title.capitalize()} against recovery",
        caption=caption,
        reference=teacher,
        table=Values(("model", "recovery %", f"{title} %"), tuple(line for _, line in marks)),
    )


def _correlation(report: Report, context: int) -> str:
    """The rank correlation of the two axes, for all students and for groups of them."""
    names = {"all": "all {} students", "pure": "the {} pure ones", "hybrid": "the {} hybrids"}
    found = [
        f"{formatting.plain(row.rho, 2)} over {names[row.students].format(row.count)}"
        for row in report.of(correlations)
        if row.context == context and len(report.teachers) == 1
    ]
    return f" Spearman's ρ is {', '.join(found)}." if found else ""


def _estimate(pair: tuple[Estimate, Estimate] | None, at: int) -> str:
    return formatting.NOTHING if pair is None else formatting.estimate(pair[at])


@section("recall", "Recall", order=40)
def recall_section(report: Report) -> list[Block]:
    """Recall by context and by task; nothing without either."""
    by_context, by_task = report.of(context_views), task_views(report)
    blocks: list[Block] = []
    if not by_context and not by_task:
        return blocks
    if numbers := report.of(recall_numbers):
        blocks += [Text(NUMBERS), Texts(numbers, "Recall")]
    blocks += charts([_against_recovery(report)])
    if by_context:
        about = (BY_CONTEXT, *unread_contexts(report.tensor))
        blocks.append(Part("Needles by context", [*map(Text, about), *charts(by_context)], "needles"))
    return [*blocks, *(Part(figure.title, charts([figure])) for figure in by_task)]


RECALL: Table[RecallRow] = Table(
    name="recall",
    title="Recall",
    rows=lambda report: report.of(recall),
    columns=(
        label_column(),
        weights_column(),
        teacher_column(),
        Column("protocol", unit="text"),
        Column("recall", value=lambda report, row: row.kind, unit="text"),
        Column("context"),
        Column("tasks", value=lambda report, row: " ".join(row.tasks), unit="text"),
        Column("missing", value=lambda report, row: " ".join(row.missing), unit="text"),
        Column("documents"),
        Column("score", kind="estimate", unit="percent"),
        Column("recovery", kind="estimate", unit="percent"),
    ),
)
MEASURES.add("recall", Measure(tables=(RECALL,), json={"recall_correlations": correlations}))
