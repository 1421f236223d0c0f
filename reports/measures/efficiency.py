"""Inference cost: what students are faster at, from where on, and what quality they have for it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from evalsuite.reports import formatting
from evalsuite.reports.analysis.measures.efficiency import (
    QUANTITIES,
    Ratio,
    Setting,
    by_context,
    crossover,
    families,
    pairings,
    ratios,
    setting,
    settings,
)
from evalsuite.reports.figures.figure import Figure, Values, figure, text
from evalsuite.reports.measures.efficiency_charts import Labels, efficiency_charts
from evalsuite.reports.records.efficiency import EfficiencyRow
from evalsuite.reports.references.efficiency import paper_ratios
from evalsuite.reports.report import Report
from evalsuite.reports.section import section

SHOWN_CONTEXTS = (2048, 32768, 131072)
"""Contexts of the ratios in the table of crossovers, where measured; else the shortest and the longest."""
PARETO_CONTEXT = 32768
"""Context of the quality-cost figures, if all students have it; else their longest common one."""


@dataclass(frozen=True, slots=True)
class CrossoverLine:
    """One student: per quantity from where it is better than its teacher, and by how much."""

    label: str
    cells: list[tuple[str, str]]
    """Crossover and ratios, in the order of `QUANTITIES`."""


@dataclass(frozen=True, slots=True)
class EngineLine:
    """One model and context in several engines."""

    label: str
    context: str
    cells: list[tuple[str, str]]
    """Time to first token and decode speed, per engine."""


@dataclass(frozen=True, slots=True)
class PaperLine:
    """A paper's statement next to ours at the same context."""

    paper: str
    figure: str
    statement: str
    ours: str


@dataclass(frozen=True, slots=True)
class CostRow:
    """One line of the table of measurements."""

    label: str
    engine: str
    kind: str
    context: str
    batch: str
    ttft: str
    decode: str
    cache: str
    peak: str
    energy: str
    note: str


@dataclass(frozen=True, slots=True)
class CostView:
    """The section."""

    setting: str
    quantities: list[str]
    crossovers: list[CrossoverLine]
    charts: list[Figure]
    papers: list[PaperLine]
    engines: list[str]
    side_by_side: list[EngineLine]
    rows: list[CostRow]
    notes: list[str]


def cost_view_of(rows: Sequence[EfficiencyRow], labels: Labels, pareto: Sequence[Figure] = ()) -> CostView:
    """The section of measurements, which may belong to no report.

    Crossovers and figures are of the setting with most measurements, the other engines stand side by side.
    """
    main = settings(rows)[0]
    mine = [row for row in rows if setting(row) == main]
    engines = sorted({row.engine for row in rows}, key=lambda name: name != main.engine)
    return CostView(
        setting=f"{main.engine}, {main.device}, {main.dtype}",
        quantities=[info.title for info in QUANTITIES.values()],
        crossovers=crossover_lines(mine, labels),
        charts=[
            *pareto,
            *(chart for family in families(mine) for chart in efficiency_charts(family, labels)),
        ],
        papers=paper_lines(mine, labels),
        engines=engines,
        side_by_side=engine_lines(rows, labels, engines) if len(engines) > 1 else [],
        rows=[_row(row, labels) for row in rows],
        notes=_notes(rows),
    )


def crossover_lines(rows: Sequence[EfficiencyRow], labels: Labels) -> list[CrossoverLine]:
    """Every student with its teacher; rows of one setting."""
    lines = []
    for pair in pairings(rows):
        cells = []
        for name in QUANTITIES:
            found = ratios(rows, pair.student.weights_id, pair.teacher.weights_id, name)
            cross = crossover(found, name)
            shown = ", ".join(
                f"{each.point:.3g}× at {formatting.tokens(each.context)}" for each in _shown(found)
            )
            cells.append((formatting.NOTHING if cross is None else cross.text, shown))
        if any(shown for _, shown in cells):
            lines.append(CrossoverLine(labels.get(pair.student.weights_id, pair.student.label), cells))
    return lines


def engine_lines(rows: Sequence[EfficiencyRow], labels: Labels, engines: Sequence[str]) -> list[EngineLine]:
    """Models and contexts that several engines have measured, one prompt each."""
    found: dict[tuple[str, int], dict[str, EfficiencyRow]] = {}
    for row in rows:
        if row.kind == "request" and row.batch == 1 and row.status == "ok":
            found.setdefault((row.weights_id, row.context), {})[row.engine] = row
    return [
        EngineLine(
            labels.get(identifier, next(iter(measured.values())).label),
            formatting.tokens(context),
            [_engine_cell(measured.get(engine)) for engine in engines],
        )
        for (identifier, context), measured in found.items()
        if len(measured) > 1
    ]


def _engine_cell(row: EfficiencyRow | None) -> tuple[str, str]:
    if row is None:
        return formatting.NOTHING, formatting.NOTHING
    speed = row.decode_tokens_per_second
    return (
        formatting.NOTHING if row.ttft_ms is None else f"{row.ttft_ms.median:,.1f}",
        formatting.NOTHING if speed is None else f"{speed:,.0f}",
    )


def _shown(found: Sequence[Ratio]) -> list[Ratio]:
    chosen = [each for each in found if each.context in SHOWN_CONTEXTS]
    return chosen or [*found[:1], *found[1:][-1:]]


def paper_lines(rows: Sequence[EfficiencyRow], labels: Labels) -> list[PaperLine]:
    """The papers' statements with the ratios of our hybrids at the same context; rows of one setting."""
    lines = []
    for stated in paper_ratios():
        ours = []
        for pair in pairings(rows):
            label = labels.get(pair.student.weights_id, pair.student.label)
            if "softmax" not in label:
                continue
            name = next(each for each in QUANTITIES if each == stated.quantity)
            found = ratios(rows, pair.student.weights_id, pair.teacher.weights_id, name)
            ours += [f"{label}: {each.point:.3g}×" for each in found if each.context == stated.context]
        if ours:
            lines.append(PaperLine(stated.paper, stated.figure, stated.statement, "; ".join(ours)))
    return lines


def _notes(rows: Sequence[EfficiencyRow]) -> list[str]:
    notes = []
    if any(row.random_weights for row in rows):
        notes.append("Models with random weights: speed and memory depend on shapes alone.")
    beyond = sorted({row.context for row in rows if row.out_of_distribution})
    if beyond:
        notes.append(
            f"From {formatting.tokens(beyond[0])} on, contexts exceed some models' positions: out of "
            "distribution for answers, not for speed."
        )
    if shared := sorted({row.label for row in rows if row.other_processes}):
        notes.append(f"Other processes computed on the GPU during measurements of {', '.join(shared)}.")
    return notes


def _row(row: EfficiencyRow, labels: Labels) -> CostRow:
    nothing = formatting.NOTHING
    speed, cache = row.decode_tokens_per_second, row.cache_bytes
    return CostRow(
        label=labels.get(row.weights_id, row.label),
        engine=row.engine,
        kind=row.kind,
        context=formatting.tokens(row.context) + ("*" if row.out_of_distribution else ""),
        batch=formatting.count(row.batch),
        ttft=nothing if row.ttft_ms is None else f"{row.ttft_ms.median:,.1f}",
        decode=nothing if speed is None else formatting.count(round(speed)),
        cache=nothing if cache is None else formatting.bytes_(cache),
        peak=nothing if row.peak_bytes is None else formatting.bytes_(row.peak_bytes),
        energy=nothing if row.joules is None else f"{row.joules:.3g}",
        note="" if row.status == "ok" else row.status.replace("_", " "),
    )


@dataclass(frozen=True, slots=True)
class _Placed:
    """One student of a quality-cost figure."""

    label: str
    cost: float
    recovery: float


def pareto_front(points: Sequence[tuple[float, float]], *, less_is_better: bool) -> list[tuple[float, float]]:
    """The points (cost, quality) that no other one beats in both; in order of cost, the best first."""
    front: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda each: (each[0] if less_is_better else -each[0], -each[1])):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front


def _pareto(report: Report, where: Setting) -> list[Figure]:
    """Recovery against decode speed, and against the cache per sequence."""
    rows = [row for row in report.efficiency if setting(row) == where]
    students = {i: report.checkpoints[i].plan.weights_id for i in report.students()}
    if not report.protocols:
        return []
    protocol = report.protocols[0]
    made = []
    for what, axis, is_speed in (("decode speed", "decode, tokens/s", True), ("cache", "cache, MiB", False)):
        name = "decode" if is_speed else "cache"
        values = {i: by_context(rows, key, name) for i, key in students.items()}  # type: ignore[arg-type]
        contexts = {context for found in values.values() for context in found}
        if not contexts:
            continue
        shared = max(
            contexts,
            key=lambda c: (sum(c in found for found in values.values()), c == PARETO_CONTEXT, c),
        )
        placed = []
        for student in students:
            value, row = values[student].get(shared), report.leading_average(student, protocol)
            if value is not None and row is not None and row.recovery.point is not None:
                cost = 1000 / value.median if is_speed else value.median / 2**20
                placed.append(_Placed(report.checkpoints[student].label, cost, 100 * row.recovery.point))
        if len(placed) >= 2:
            title = f"Recovery against {what}, {formatting.PROTOCOL_TITLES[protocol]}"
            made.append(_pareto_figure(placed, axis, is_speed, shared, where, title))
    return made


def _pareto_figure(
    placed: Sequence[_Placed], axis: str, is_speed: bool, context: int, where: Setting, title: str
) -> Figure:
    front = pareto_front([(each.cost, each.recovery) for each in placed], less_is_better=not is_speed)
    traces = [
        go.Scatter(
            x=[cost for cost, _ in front],
            y=[recovery for _, recovery in front],
            mode="lines",
            line={"color": "var(--ref)", "width": 1.3, "dash": "dot"},
            hoverinfo="skip",
        ),
        go.Scatter(
            x=[each.cost for each in placed],
            y=[each.recovery for each in placed],
            mode="markers+text" if len(placed) <= 12 else "markers",
            text=[text(each.label) for each in placed],
            textposition="top center",
            marker={"size": 9, "color": "var(--accent)"},
            hovertext=[text(f"{each.label}: {each.recovery:.1f} %, {each.cost:,.4g}") for each in placed],
            hoverinfo="text",
        ),
    ]
    return figure(
        traces,
        {
            "xaxis": {
                "title": {"text": axis},
                "exponentformat": "B",
                "type": "linear" if is_speed else "log",
            },
            "yaxis": {"title": {"text": "recovery, %"}},
            "showlegend": False,
        },
        title=title,
        caption=f"Context {formatting.tokens(context)}, one sequence, {where.engine}, {where.device}. "
        "Dotted: students that none beats in both (Pareto front).",
        table=Values(
            ("model", axis, "recovery %"),
            tuple((each.label, f"{each.cost:,.4g}", f"{each.recovery:.1f}") for each in placed),
        ),
    )


def teachers_of(report: Report) -> Mapping[str, str]:
    """weights_id of each student → its teacher's, by the report's pairing."""
    found = {}
    for checkpoint in report.checkpoints:
        if checkpoint.teacher is not None:
            found[checkpoint.plan.weights_id] = report.checkpoints[checkpoint.teacher].plan.weights_id
    return found


@section("cost", "Efficiency", order=70)
def cost_view(report: Report) -> CostView | None:
    """Crossovers, figures and table; None without measurements."""
    if not report.efficiency:
        return None
    teachers = teachers_of(report)
    rows = [
        row.model_copy(update={"teacher": teachers.get(row.weights_id, row.teacher)})
        for row in report.efficiency
    ]
    # The weights of several checkpoints are called as in the plan: a row says its engine itself.
    twice = Counter(checkpoint.plan.weights_id for checkpoint in report.checkpoints)
    labels = {
        each.plan.weights_id: each.label if twice[each.plan.weights_id] == 1 else each.plan.label
        for each in report.checkpoints
    }
    return cost_view_of(rows, labels, _pareto(report, settings(rows)[0]))
