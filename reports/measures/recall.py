"""Recall: several numbers, never one, since each fails in its own way.

A number is the mean over the benchmarks that name it in their plan, by context and over all contexts. It is
undefined without all tasks that it requires.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from evalsuite.foundation import counted
from evalsuite.foundation.taxonomy import RecallNumber
from evalsuite.reports import formatting
from evalsuite.reports.analysis.bootstrap_sample import LEVEL_METHOD, Estimate
from evalsuite.reports.analysis.lineage import Lineage, lineage_of
from evalsuite.reports.analysis.recovery import recovery
from evalsuite.reports.analysis.result_tensor import ResultTensor
from evalsuite.reports.analysis.rows import BenchmarkRow
from evalsuite.reports.analysis.scopes import INFORMATIVE, Pool
from evalsuite.reports.analysis.warnings import unread_contexts
from evalsuite.reports.blocks import Block, Part, Text, Texts, charts
from evalsuite.reports.figures.figure import Figure, Values
from evalsuite.reports.figures.plots import Axis, Mark, heatmap, scatter
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.records.merging import CellKey
from evalsuite.reports.report import Report, resampled
from evalsuite.reports.section import section
from evalsuite.reports.table import Column, Table, label_column, percentage, teacher_column, weights_column

MIN_STUDENTS = 5
"""A rank correlation of fewer students is noise."""
_GROUPS: dict[Literal["all", "pure", "hybrid"], Callable[[Lineage], bool]] = {
    "all": lambda lineage: True,
    "pure": lambda lineage: (
        bool(lineage.mixers) and not (lineage.softmax_layers or lineage.softmax_heads or lineage.windows)
    ),
    "hybrid": lambda lineage: bool(lineage.softmax_layers or lineage.softmax_heads),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallRow:
    """One recall number of one checkpoint under one protocol."""

    checkpoint: int
    kind: str
    """Name of the number."""
    number: RecallNumber
    protocol: str
    context: int | None
    """In tokens; None for the mean over contexts, and for tasks without contexts."""
    tasks: tuple[str, ...]
    missing: tuple[str, ...]
    """Tasks without scores of this checkpoint or its teacher: of the plan, or that the number requires."""
    documents: int
    score: Estimate
    """Mean over the tasks; undefined if any is missing."""
    recovery: Estimate
    """Score ÷ the teacher's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallCorrelation:
    """Rank correlation of recovery under log-likelihood and a recall number in generation over students."""

    teacher: int
    students: Literal["all", "pure", "hybrid"]
    """`pure`: recurrences alone; `hybrid`: some layers softmax. Windows are in `all` only."""
    context: int
    count: int
    """Number of students."""
    rho: float
    """Spearman's ρ."""


def recall_correlations(
    tensor: ResultTensor, rows: Sequence[RecallRow], recoveries: Mapping[int, float]
) -> list[RecallCorrelation]:
    """One row per teacher, context and group of students, where `MIN_STUDENTS` have both.

    The number is the one that is declared to be shown against recovery.

    Args:
        tensor: the checkpoints.
        rows: of `recall_rows`.
        recoveries: student → recovery under log-likelihood that ranks it.
    """
    found = []
    shares = {
        (row.checkpoint, row.context): point
        for row in against_recovery(rows)
        if (point := row.score.point) is not None
    }
    for context in sorted({c for _, c in shares if c is not None}):
        for teacher in sorted({t for each in tensor.checkpoints if (t := each.teacher) is not None}):
            there = [
                i for i in recoveries if (i, context) in shares and tensor.checkpoints[i].teacher == teacher
            ]
            for name, is_member in _GROUPS.items():
                members = [i for i in there if is_member(lineage_of(tensor.checkpoints[i]))]
                values = [[recoveries[i] for i in members], [shares[i, context] for i in members]]
                if len(members) < MIN_STUDENTS or any(len(set(each)) < 2 for each in values):
                    continue
                # Equal averages of other tasks differ in their last bits, and are ties.
                ranks = [pd.Series(each).round(12).rank() for each in values]
                rho = float(np.corrcoef(ranks)[0, 1])
                found.append(
                    RecallCorrelation(
                        teacher=teacher, students=name, context=context, count=len(members), rho=rho
                    )
                )
    return found


def against_recovery(rows: Sequence[RecallRow]) -> list[RecallRow]:
    """The rows in generation of the first number that is shown against recovery."""
    shown = [row for row in rows if row.number.against_recovery and row.protocol == "generation"]
    return [row for row in shown if row.kind == shown[0].kind]


def recall_rows(pool: Pool) -> list[RecallRow]:
    """One row per checkpoint, number and context, and one over the contexts where there are several.

    Numbers with contexts come first, in the order of the plan.
    """
    found = []
    numbers: dict[str, RecallNumber] = {}
    parts: dict[str, list[int]] = {}
    for i, cell in enumerate(pool.cells):
        for name, number in cell.benchmark.recall.items():
            numbers.setdefault(name, number)
            parts.setdefault(name, []).append(i)
    order = sorted(parts, key=lambda name: all(pool.cells[i].context is None for i in parts[name]))
    for kind in order:
        number, cells = numbers[kind], parts[kind]
        contexts = sorted({c for i in cells if (c := pool.cells[i].context) is not None})
        groups: list[tuple[int | None, list[int]]] = [
            (context, [i for i in cells if pool.cells[i].context == context]) for context in contexts
        ]
        others = [set(parts[name]) for name in parts if name != kind]
        if number.tasks and any(set(cells) <= other for other in others):
            groups = []  # All there is of it is another number, which has the contexts.
        if len(groups) != 1:
            groups.append((None, cells))
        for context, members in groups:
            for checkpoint in range(len(pool.tensor.checkpoints)):
                row = _row(pool, kind, number, context, members, checkpoint)
                found += [] if row is None else [row]
    return found


def _row(
    pool: Pool, kind: str, number: RecallNumber, context: int | None, cells: Sequence[int], checkpoint: int
) -> RecallRow | None:
    teacher = pool.tensor.checkpoints[checkpoint].teacher
    who = {checkpoint} if teacher is None else {checkpoint, teacher}
    there = tuple(i for i in cells if who <= set(pool.cells[i].present))
    if not there:
        return None
    wanted = number.tasks or _names(pool, cells)
    lacking = set(_names(pool, [i for i in cells if i not in there])) | {
        each.benchmark
        for each in pool.tensor.incomplete
        if each.checkpoint in who and each.protocol == pool.protocol and context in (None, each.context)
    }
    tasks = _names(pool, there)
    missing = tuple(name for name in wanted if name in lacking or name not in tasks)
    data = pool.sample(there)
    assert data is not None  # there are cells
    why = f"{len(missing)} of {len(wanted)} tasks are missing: {', '.join(missing)}"
    return RecallRow(
        checkpoint=checkpoint,
        kind=kind,
        number=number,
        protocol=pool.protocol,
        context=context,
        tasks=tasks,
        missing=missing,
        documents=data.documents,
        score=Estimate(None, why)
        if missing
        else Estimate(data.level_contrast(checkpoint).interval(method=LEVEL_METHOD)),
        recovery=Estimate(None, why)
        if missing
        else Estimate(None, "a teacher has no recovery")
        if teacher is None
        else recovery(data, checkpoint, teacher),
    )


def _names(pool: Pool, cells: Sequence[int]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(pool.cells[i].benchmark.name for i in cells))


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
    "Scores in percent by context length in tokens. Hover for the 95 % interval; where the page has "
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
    text = f"{counted(documents, 'document')} per context"
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
    return HeatCell(formatting.percent(mean), mean, "", f"{label}: mean of {counted(len(shares), 'task')}")


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
    for i in _best_first(report, {key[0]: row for key, row in rows.items() if key[1:] == places[0]}):
        found = [rows.get((i, *place)) for place in places]
        if any(found):
            cells = [(row.score, row.recovery) if row else None for row in found]
            numbers = [text for cell in cells for text in (_estimate(cell, 0), _estimate(cell, 1))]
            lines.append((report.checkpoints[i].label, *numbers))
    heads = [text for column in columns for text in (f"{column}, %", "recovery, %")]
    return Values(("model", *heads), tuple(lines))


def _best_first(report: Report, rows: Mapping[int, RecallRow]) -> list[int]:
    """All checkpoints, each teacher before its students, and these by their score."""

    def place(i: int) -> tuple[int, bool, float]:
        teacher = report.checkpoints[i].teacher
        score = rows[i].score.point if i in rows else None
        return i if teacher is None else teacher, teacher is not None, -(score or 0.0)

    return sorted(range(len(report.checkpoints)), key=place)


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
        blocks.append(Part("Scores by context", [*map(Text, about), *charts(by_context)], "contexts"))
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
        percentage("score"),
        percentage("recovery"),
    ),
)
MEASURES.add("recall", Measure(tables=(RECALL,), json={"recall_correlations": correlations}))
