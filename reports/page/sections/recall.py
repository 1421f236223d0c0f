"""Heatmaps: needle retrieval by context length, LongBench by task."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from evalsuite.reports import formatting
from evalsuite.reports.analysis.rows import BenchmarkRow
from evalsuite.reports.page.section import section
from evalsuite.reports.records.merging import CellKey
from evalsuite.reports.report import Report


@dataclass(frozen=True, slots=True)
class HeatCell:
    """One score; `share` sets the shade, None marks an incomplete cell."""

    text: str
    share: float | None
    key: str
    """Key of the drill-down; empty for a mean."""
    hint: str


@dataclass(frozen=True, slots=True)
class Heatmap:
    """Checkpoints × contexts, or checkpoints × benchmarks."""

    title: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[HeatCell | None, ...]], ...]
    """Label, role, cells."""


def needle_views(report: Report) -> list[Heatmap]:
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
                Heatmap(
                    title=benchmark.title,
                    about=(
                        f"{formatting.PROTOCOL_TITLES[protocol]}, "
                        f"{formatting.count(documents)} documents per context"
                    ),
                    columns=tuple(formatting.tokens(context) for context in contexts),
                    rows=_heat_rows(report, rows, (benchmark.name, protocol), contexts),
                )
            )
    return views


def _heat_rows(
    report: Report, rows: Sequence[BenchmarkRow], place: tuple[str, str], contexts: Sequence[int]
) -> tuple[tuple[str, str, tuple[HeatCell | None, ...]], ...]:
    found = {(row.checkpoint, row.context): row for row in rows}
    lines = []
    for i, checkpoint in enumerate(report.checkpoints):
        cells = tuple(
            _heat_cell(report, found.get((i, context))) or _incomplete_cell(report, i, (*place, context))
            for context in contexts
        )
        if any(cells):
            lines.append((checkpoint.label, checkpoint.plan.role, cells))
    return tuple(lines)


def _incomplete_cell(report: Report, checkpoint: int, key: CellKey) -> HeatCell | None:
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
    digits = 0 if row.context is not None else 1
    return HeatCell(formatting.percent(row.score.point, digits), round(row.score.point, 3), key, hint)


def _mean_cell(label: str, cells: Sequence[HeatCell | None]) -> HeatCell | None:
    """The mean of a row; None if a score is missing."""
    shares = [cell.share for cell in cells if cell is not None and cell.share is not None]
    if len(shares) < len(cells):
        return None
    mean = sum(shares) / len(shares)
    return HeatCell(formatting.percent(mean), mean, "", f"{label}: mean of {len(shares)} tasks")


def _scaled(cell: HeatCell | None, top: float) -> HeatCell | None:
    return cell if cell is None or cell.share is None else replace(cell, share=round(cell.share / top, 3))


def longbench_view(report: Report) -> Heatmap | None:
    """Checkpoints × LongBench tasks; None without such a benchmark group."""
    tasks = [
        b
        for b in report.benchmarks
        if (b.group == "longbench" or b.name.startswith("longbench")) and "generation" in b.protocols
    ]
    rows = {(r.checkpoint, r.benchmark): r for r in report.scores if r.protocol == "generation"}
    tasks = [task for task in tasks if any(name == task.name for _, name in rows)]
    if not tasks:
        return None
    lines: list[tuple[str, str, tuple[HeatCell | None, ...]]] = []
    for i, checkpoint in enumerate(report.checkpoints):
        cells = tuple(
            _heat_cell(report, rows.get((i, task.name)))
            or _incomplete_cell(report, i, (task.name, "generation", None))
            for task in tasks
        )
        if any(cells):
            lines.append((checkpoint.label, checkpoint.plan.role, cells))
    lines = [(label, role, (*cells, _mean_cell(label, cells))) for label, role, cells in lines]
    top = max((cell.share or 0.0 for _, _, cells in lines for cell in cells if cell), default=0.0) or 1.0
    lines = [(label, role, tuple(_scaled(cell, top) for cell in cells)) for label, role, cells in lines]
    return Heatmap(
        title="LongBench",
        about="",
        columns=(*(task.title.removeprefix("LongBench ") for task in tasks), "mean"),
        rows=tuple(lines),
    )


@dataclass(frozen=True, slots=True)
class RecallView:
    """The section."""

    needles: list[Heatmap]
    longbench: Heatmap | None


@section("recall", "Recall", order=40)
def recall_view(report: Report) -> RecallView | None:
    """Needles and LongBench; None without either."""
    view = RecallView(needle_views(report), longbench_view(report))
    return view if view.needles or view.longbench else None
