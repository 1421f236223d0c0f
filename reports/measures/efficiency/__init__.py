"""Inference cost: what students are faster at, from where on, and what quality they have for it."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import plotly.graph_objects as go

from evalsuite.foundation import counted
from evalsuite.reports import formatting
from evalsuite.reports.analysis.scopes import ALL
from evalsuite.reports.blocks import Block, Fold, Text, charts
from evalsuite.reports.figures.figure import Figure, Values, figure, text
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.measures.efficiency.comparison import (
    QUANTITIES,
    Crossover,
    Pairing,
    Quantity,
    Ratio,
    Setting,
    by_context,
    crossover,
    families,
    growth_exponent,
    pairings,
    ratios,
    setting,
    settings,
    synthetic_deviation,
    typical_ratio,
)
from evalsuite.reports.measures.efficiency.context_charts import efficiency_charts
from evalsuite.reports.measures.efficiency.rules import METRICS
from evalsuite.reports.measures.leaderboard import Entry
from evalsuite.reports.records.efficiency import EfficiencyRow, Spread, read_efficiency
from evalsuite.reports.references.efficiency import PaperRatio, paper_ratios
from evalsuite.reports.report import Report
from evalsuite.reports.section import section
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.table import ALONE, CSV, TABLES, Column, Output, Table, Value

SHOWN_CONTEXTS = (2048, 32768, 131072)
"""Contexts of the ratios in the table of crossovers, where measured; else the shortest and the longest."""
PARETO_CONTEXT = 32768
"""Context of the quality-cost figures, if all students have it; else their longest common one."""
LINEAR_FROM = 8192
"""Shortest context of a fit of growth: below, fixed costs dominate on a GPU."""
OPEN_ROWS = 30
"""Measurements below which their table is open."""


def _repeats(value: Spread | None) -> Value:
    return None if value is None else Interval(value.median, value.low, value.high, "range of repeats")


def _plain(name: str, *, text: bool = False) -> Column[EfficiencyRow]:
    return Column(name, outputs=CSV, unit="text" if text else "number")


def _flag(name: str) -> Column[EfficiencyRow]:
    return Column(name, value=lambda report, row: str(getattr(row, name)), unit="text", outputs=CSV)


def _time(name: str, title: str = "", outputs: tuple[Output, ...] = CSV) -> Column[EfficiencyRow]:
    """Milliseconds: the median of the repeats, with their range."""
    return Column(
        name,
        title,
        value=lambda report, row: _repeats(getattr(row, name)),
        kind="interval",
        outputs=outputs,
        with_interval=False,
    )


def _bytes(name: str, title: str) -> Column[EfficiencyRow]:
    def show(report: Report, row: EfficiencyRow) -> str:
        value = getattr(row, name)
        return formatting.NOTHING if value is None else formatting.bytes_(value)

    return Column(name, title, show=show)


def _joules(report: Report, row: EfficiencyRow) -> str:
    return formatting.NOTHING if row.joules is None else f"{row.joules:.3g}"


def _note(report: Report, row: EfficiencyRow) -> str:
    status = "" if row.status == "ok" else row.status.replace("_", " ")
    return f"{status}: {row.detail}" if status and row.detail else status


def efficiency(report: Report) -> list[EfficiencyRow]:
    """The measurements of all runs, under the labels of their files."""
    return read_efficiency(report.runs)


def measured(report: Report) -> list[EfficiencyRow]:
    """The measurements with the report's labels and teachers."""
    teachers = {
        each.weights_id: report.checkpoints[each.teacher].weights_id
        for each in report.checkpoints
        if each.teacher is not None
    }
    # The weights of several checkpoints are called as in their run: a row states its engine itself.
    twice = Counter(each.weights_id for each in report.checkpoints)
    labels = {
        each.weights_id: each.label if twice[each.weights_id] == 1 else each.label_in_run
        for each in report.checkpoints
    }
    return [
        replace(
            row,
            teacher=teachers.get(row.weights_id, row.teacher),
            label=labels.get(row.weights_id, row.label),
        )
        for row in report.of(efficiency)
    ]


EFFICIENCY: Table[EfficiencyRow] = Table(
    name="efficiency",
    title="Cost",
    rows=lambda report: report.of(measured),
    columns=(
        Column("schema", outputs=CSV),
        Column("label", "model", unit="text"),
        _plain("weights_id", text=True),
        _plain("teacher", text=True),
        _flag("random_weights"),
        Column("engine", unit="text"),
        _plain("versions", text=True),
        _plain("device", text=True),
        _plain("dtype", text=True),
        _plain("parameters"),
        Column("kind", unit="text"),
        Column(
            "context",
            show=lambda report, row: formatting.tokens(row.context) + "*" * row.out_of_distribution,
        ),
        Column("batch"),
        _plain("status", text=True),
        _plain("detail", text=True),
        _flag("out_of_distribution"),
        _time("ttft_ms", "first token, ms", ("csv", *TABLES)),
        _time("step_ms"),
        _plain("prefill_tokens_per_second"),
        Column("decode_tokens_per_second", "decode, tokens/s", digits=0),
        _bytes("cache_bytes", "cache per sequence"),
        _plain("expected_cache_bytes"),
        _bytes("peak_bytes", "peak memory"),
        _plain("prefill_flops"),
        _plain("decode_bytes"),
        Column("joules", "J per token", show=_joules),
        _plain("sm_clock_mhz"),
        _plain("other_processes"),
        _plain("date", text=True),
        Column("note", unit="text", outputs=TABLES, show=_note, css=lambda report, row: "muted"),
    ),
)


@dataclass(frozen=True, slots=True)
class RatioRow:
    """A student's ratio to its teacher in one quantity at one context, and the crossover."""

    pair: Pairing
    quantity: Quantity
    ratio: Ratio
    crossover: Crossover | None


def _compared(rows: Sequence[EfficiencyRow], pair: Pairing, quantity: Quantity) -> list[Ratio]:
    mine = [row for row in rows if setting(row) == pair.setting]
    return ratios(mine, pair.student.weights_id, pair.teacher.weights_id, quantity)


def ratio_rows(rows: Sequence[EfficiencyRow]) -> list[RatioRow]:
    """Every student, setting, quantity and context that its teacher has, too."""
    return [
        RatioRow(pair, name, ratio, crossover(found, name))
        for pair in pairings(rows)
        for name in QUANTITIES
        for found in [_compared(rows, pair, name)]
        for ratio in found
    ]


def _crossover(report: Report, row: RatioRow) -> Value:
    found = row.crossover
    return None if found is None else Interval(found.context, found.low, found.high, "range of repeats")


def _of_pair(name: str, value: Callable[[Pairing], str]) -> Column[RatioRow]:
    return Column(name, value=lambda report, row: value(row.pair), unit="text")


CROSSOVERS: Table[RatioRow] = Table(
    name="crossovers",
    title="Crossovers",
    rows=lambda report: ratio_rows(report.of(measured)),
    columns=(
        _of_pair("student", lambda pair: pair.student.label),
        _of_pair("teacher", lambda pair: pair.teacher.label),
        _of_pair("engine", lambda pair: pair.setting.engine),
        _of_pair("device", lambda pair: pair.setting.device),
        _of_pair("dtype", lambda pair: pair.setting.dtype),
        Column("quantity", unit="text"),
        Column("context", value=lambda report, row: row.ratio.context),
        Column(
            "ratio",
            value=lambda report, row: Interval(
                row.ratio.point, row.ratio.low, row.ratio.high, "range of repeats"
            ),
            kind="interval",
        ),
        Column("crossover", value=_crossover, kind="interval"),
    ),
    json="efficiency_ratios",
    json_rows=lambda report: CROSSOVERS.cells(report),
)


def ratio_column(
    quantity: Quantity, name: str, checkpoint_of: Callable[[Any], int | None], **how: Any
) -> Column[Any]:
    """Cost of the teacher ÷ that of a row's checkpoint; empty where `checkpoint_of` is None."""

    def value(report: Report, row: Any) -> Value:
        checkpoint = checkpoint_of(row)
        teacher = None if checkpoint is None else report.checkpoints[checkpoint].teacher
        if checkpoint is None or teacher is None:
            return None
        mine, theirs = (report.checkpoints[each].weights_id for each in (checkpoint, teacher))
        return typical_ratio(report.of(efficiency), mine, theirs, quantity)

    return Column(
        name,
        title=f"{quantity}, ×",
        hint="Teacher ÷ student at 32k tokens, or at the longest measured context; more is better.",
        value=value,
        kind="interval",
        better="higher",
        **how,
    )


_RATIOS: tuple[Quantity, ...] = ("prefill", "decode", "cache")
COLUMNS: tuple[Column[Entry], ...] = tuple(
    ratio_column(
        quantity,
        f"{quantity}_ratio",
        lambda entry: entry.checkpoint if entry.average.scope == ALL else None,
        outputs=("csv", "page"),
    )
    for quantity in _RATIOS
)
MEASURES.add("efficiency", Measure(tables=(EFFICIENCY, CROSSOVERS), columns=COLUMNS, metrics=METRICS))


@section("cost", "Efficiency", order=70)
def cost_section(report: Report) -> list[Block]:
    """Crossovers, figures and table."""
    rows = report.of(measured)
    return cost_blocks(rows, _pareto(report, settings(rows)[0])) if rows else []


def cost_blocks(rows: Sequence[EfficiencyRow], pareto: Sequence[Figure] = ()) -> list[Block]:
    """The section of measurements, which may belong to no report.

    Crossovers and figures are of the setting with most measurements, the other engines stand side by side.
    """
    main = settings(rows)[0]
    mine = [row for row in rows if setting(row) == main]
    blocks: list[Block] = [*map(Text, _notes(rows))]
    if crossovers := crossover_table(mine):
        where = f"{main.engine}, {main.device}, {main.dtype}"
        about = (
            "Context in tokens from which a student is better than its teacher, with its interval; below it "
            f"the teacher's cost ÷ the student's ({where}). Everywhere and nowhere mean the measured "
            "contexts."
        )
        blocks += [Text(about), crossovers]
    blocks += charts([*pareto, *(chart for each in families(mine) for chart in efficiency_charts(each))])
    if stated := paper_rows(mine):
        blocks.append(PAPERS.of(stated))
    if engines := engine_table(rows, main.engine):
        blocks.append(Fold("Engines side by side", [engines]))
    summary = counted(len(rows), "measurement")
    return [*blocks, Fold(summary, [EFFICIENCY.of(rows)], is_open=len(rows) < OPEN_ROWS)]


def crossover_table(rows: Sequence[EfficiencyRow]) -> Table[Pairing] | None:
    """Every student with its teacher, one column per quantity; rows of one setting. None without any."""

    def ratios_text(pair: Pairing, name: Quantity) -> str:
        found = _shown(_compared(rows, pair, name))
        return ", ".join(f"{each.point:.3g}× at {formatting.tokens(each.context)}" for each in found)

    def column(name: Quantity) -> Column[Pairing]:
        def crossing(report: Report, pair: Pairing) -> Value:
            found = crossover(_compared(rows, pair, name), name)
            return None if found is None else found.text

        return Column(
            name,
            QUANTITIES[name].title,
            value=crossing,
            unit="text",
            about=lambda report, pair: ratios_text(pair, name),
        )

    pairs = [pair for pair in pairings(rows) if any(ratios_text(pair, name) for name in QUANTITIES)]
    label: Column[Pairing] = Column("student", value=lambda report, pair: pair.student.label, unit="text")
    columns = (label, *map(column, QUANTITIES))
    table = Table(name="crossing", title="Crossovers", rows=lambda report: pairs, columns=columns)
    return table if pairs else None


def _shown(found: Sequence[Ratio]) -> list[Ratio]:
    chosen = [each for each in found if each.context in SHOWN_CONTEXTS]
    return chosen or [*found[:1], *found[1:][-1:]]


def engine_table(rows: Sequence[EfficiencyRow], main: str) -> Table[Any] | None:
    """Models and contexts that several engines have measured, one prompt each; None without any."""
    found: dict[tuple[str, int], dict[str, EfficiencyRow]] = {}
    for row in rows:
        if row.kind == "request" and row.batch == 1 and row.status == "ok":
            found.setdefault((row.weights_id, row.context), {})[row.engine] = row
    shared = [each for each in found.values() if len(each) > 1]
    engines = sorted({row.engine for row in rows}, key=lambda name: name != main)

    def columns(engine: str) -> Iterator[Column[dict[str, EfficiencyRow]]]:
        for name, title, digits in (
            ("ttft_ms", "first token ms", 1),
            ("decode_tokens_per_second", "tokens/s", 0),
        ):
            yield Column(
                f"{engine} {name}",
                f"{engine}, {title}",
                value=partial(_number, engine, name),
                digits=digits,
            )

    return (
        Table(
            name="engines",
            title="Engines",
            rows=lambda report: shared,
            columns=(
                Column("label", "model", value=lambda report, each: _any(each).label, unit="text"),
                Column("context", show=lambda report, each: formatting.tokens(_any(each).context)),
                *(column for engine in engines for column in columns(engine)),
            ),
        )
        if shared
        else None
    )


def _any(measured: dict[str, EfficiencyRow]) -> EfficiencyRow:
    return next(iter(measured.values()))


def _number(engine: str, name: str, report: Report, measured: dict[str, EfficiencyRow]) -> float | None:
    row = measured.get(engine)
    value = None if row is None else getattr(row, name)
    return value.median if isinstance(value, Spread) else value


@dataclass(frozen=True, slots=True)
class PaperRow:
    """A paper's statement next to ours at the same context."""

    stated: PaperRatio
    ours: str


def _stated(name: str, report: Report, row: PaperRow) -> str:
    return str(getattr(row.stated, name))


PAPERS: Table[PaperRow] = Table(
    name="cost_papers",
    title="Figures of the papers",
    rows=lambda report: (),
    columns=(
        *(
            Column(name, value=partial(_stated, name), unit="text")
            for name in ("paper", "figure", "statement")
        ),
        Column("ours", "ours, teacher ÷ student", unit="text"),
    ),
)


def paper_rows(rows: Sequence[EfficiencyRow]) -> list[PaperRow]:
    """The papers' statements with the ratios of our hybrids at the same context; rows of one setting."""
    found = []
    for stated in paper_ratios():
        name = next(each for each in QUANTITIES if each == stated.quantity)
        ours = [
            f"{pair.student.label}: {each.point:.3g}×"
            for pair in pairings(rows)
            if "softmax" in pair.student.label
            for each in _compared(rows, pair, name)
            if each.context == stated.context
        ]
        if ours:
            found.append(PaperRow(stated, "; ".join(ours)))
    return found


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


def efficiency_text(rows: Sequence[EfficiencyRow]) -> str:
    """Text table of measurements, and what each student is better at."""
    lines: list[str] = []
    for where in settings(rows):
        mine = [row for row in rows if setting(row) == where]
        lines += [f"{where.engine}, {where.device}, {where.dtype}", EFFICIENCY.of(mine).terminal(ALONE)]
        for weights_id, label in {row.weights_id: row.label for row in mine}.items():
            deviation = synthetic_deviation(mine, weights_id)
            if deviation is not None and deviation > 0.05:
                lines.append(
                    f"{label}: a decode step with a synthetic cache differs by {100 * deviation:.0f} % from "
                    "one after a real prefill"
                )
    for pair in pairings(rows):
        mine = [row for row in rows if setting(row) == pair.setting]
        facts = []
        for name in QUANTITIES:
            found = _compared(rows, pair, name)
            cross = crossover(found, name)
            if cross is not None:
                title = QUANTITIES[name].title
                facts.append(f"  {title}: better {cross.text}; ×{found[-1].point:.3g} at the longest")
        prefill = growth_exponent(by_context(mine, pair.student.weights_id, "prefill"), LINEAR_FROM)
        step = growth_exponent(by_context(mine, pair.student.weights_id, "decode"))
        if prefill is not None and step is not None:
            facts.append(f"  grows with context^{prefill:.2f} (prefill) and context^{step:.2f} (decode step)")
        if facts:
            lines += [f"{pair.student.label} against {pair.teacher.label}, {pair.setting.engine}:", *facts]
    return "\n".join(lines) if lines else "no measurements"


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
    rows = [row for row in report.of(efficiency) if setting(row) == where]
    students = {i: report.checkpoints[i].weights_id for i in report.students()}
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
