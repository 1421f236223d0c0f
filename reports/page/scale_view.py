"""Needles by context, LongBench, scaling with tokens and size, layers kept, cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from evalsuite.reports import words
from evalsuite.reports.analysis.rows import ScoreRow
from evalsuite.reports.lineage import MIXER_TITLES, lineage_of
from evalsuite.reports.page.axes import log_axis, nice_axis
from evalsuite.reports.page.charts import Curve, Plot, Point, bars, curves, layer_strip
from evalsuite.reports.report import Report


@dataclass(frozen=True, slots=True)
class HeatCell:
    """One score as a shade."""

    text: str
    share: float
    key: str
    hint: str


@dataclass(frozen=True, slots=True)
class Heatmap:
    """Checkpoints by contexts (or by benchmarks)."""

    title: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[HeatCell | None, ...]], ...]
    """Label, role, cells."""


@dataclass(frozen=True, slots=True)
class ChartView:
    """A chart with its legend and its words."""

    title: str
    caption: str
    chart: Markup
    legend: tuple[str, ...]
    y_title: str
    x_title: str


@dataclass(frozen=True, slots=True)
class LayerRow:
    """Which layers of a hybrid kept softmax."""

    label: str
    about: str
    strip: Markup
    recovery: str


@dataclass(frozen=True, slots=True)
class SelectorView:
    """How a selector rated the layers."""

    title: str
    importance: Markup | None
    stability: str


@dataclass(frozen=True, slots=True)
class CostRow:
    """One line of the efficiency table."""

    label: str
    context: str
    batch: str
    prefill: str
    decode: str
    state: str
    peak: str
    device: str


def needle_views(report: Report) -> list[Heatmap]:
    """A heatmap for every benchmark with contexts, per protocol."""
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
                    about=f"{words.PROTOCOL_WORDS[protocol]}, {words.count(documents)} questions per context",
                    columns=tuple(words.tokens(context) for context in contexts),
                    rows=_heat_rows(report, rows, contexts),
                )
            )
    return views


def _heat_rows(
    report: Report, rows: Sequence[ScoreRow], contexts: Sequence[int]
) -> tuple[tuple[str, str, tuple[HeatCell | None, ...]], ...]:
    found = {(row.subject, row.context): row for row in rows}
    lines = []
    for i, subject in enumerate(report.subjects):
        cells = tuple(_heat_cell(report, found.get((i, context))) for context in contexts)
        if any(cells):
            lines.append((subject.label, subject.plan.role, cells))
    return tuple(lines)


def _heat_cell(report: Report, row: ScoreRow | None) -> HeatCell | None:
    if row is None:
        return None
    place = f" at {row.context:,} tokens" if row.context is not None else ""
    hint = (
        f"{report.subjects[row.subject].label}{place}: {words.percent(row.score.point)} % "
        f"(95 % interval {words.span(row.score)})"
    )
    key = f"{row.subject}|{row.benchmark}|{row.protocol}|{row.context or ''}"
    digits = 0 if row.context is not None else 1
    return HeatCell(words.percent(row.score.point, digits), round(row.score.point, 3), key, hint)


def longbench_view(report: Report) -> Heatmap | None:
    """Checkpoints by the tasks of LongBench, where the plan groups them so."""
    tasks = [
        b
        for b in report.benchmarks
        if (b.group == "longbench" or b.name.startswith("longbench")) and "generation" in b.protocols
    ]
    rows = {(r.subject, r.benchmark): r for r in report.scores if r.protocol == "generation"}
    tasks = [task for task in tasks if any(name == task.name for _, name in rows)]
    if not tasks:
        return None
    lines = []
    for i, subject in enumerate(report.subjects):
        cells = tuple(_heat_cell(report, rows.get((i, task.name))) for task in tasks)
        if any(cells):
            lines.append((subject.label, subject.plan.role, cells))
    top = max((cell.share for _, _, cells in lines for cell in cells if cell), default=0.0) or 1.0
    lines = [
        (label, role, tuple(cell and replace(cell, share=round(cell.share / top, 3)) for cell in cells))
        for label, role, cells in lines
    ]
    return Heatmap(
        title="LongBench",
        about="",
        columns=tuple(task.title.removeprefix("LongBench ") for task in tasks),
        rows=tuple(lines),
    )


def scaling_views(report: Report) -> list[ChartView]:
    """Recovery by tokens trained on, where checkpoints share a lineage; by size of the teacher, per mixer."""
    return [
        view
        for protocol in report.protocols
        for view in (_token_scaling(report, protocol), _size_scaling(report, protocol))
        if view is not None
    ]


def _token_scaling(report: Report, protocol: str) -> ChartView | None:
    families: dict[tuple[object, ...], list[Point]] = {}
    names: dict[tuple[object, ...], str] = {}
    for student in report.students():
        lineage = lineage_of(report.subjects[student].plan)
        row = report.average(student, protocol)
        if not lineage.tokens or row is None or row.recovery.interval is None or row.missing:
            continue
        key = (
            report.subjects[student].teacher,
            lineage.recipe_hash,
            lineage.recipe,
            lineage.mixers,
            lineage.seed,
        )
        names.setdefault(key, _family_name(report, student))
        families.setdefault(key, []).append(_point(report, student, lineage.tokens, protocol))
    series = [
        Curve(names[key], tuple(points))
        for key, points in families.items()
        if len({point.x for point in points}) > 1
    ]
    if not series:
        return None
    return _chart(
        series,
        title=f"Recovery by training tokens, {words.PROTOCOL_WORDS[protocol]}",
        caption="Checkpoints along one training run; whiskers are 95 % intervals over documents.",
        x_title="tokens trained on",
        x_words=lambda x: words.tokens(round(x)),
    )


def _size_scaling(report: Report, protocol: str) -> ChartView | None:
    families: dict[str, list[Point]] = {}
    for student in report.students():
        teacher = report.subjects[student].teacher
        row = report.average(student, protocol)
        if teacher is None or row is None or row.recovery.interval is None or row.missing:
            continue
        size = report.subjects[teacher].plan.parameters
        if size and lineage_of(report.subjects[student].plan).complete:
            name = _family_name(report, student)
            families.setdefault(name, []).append(_point(report, student, size, protocol))
    series = [
        Curve(name, tuple(points)) for name, points in families.items() if len({p.x for p in points}) > 1
    ]
    if not series:
        return None
    return _chart(
        series,
        title=f"Recovery by size of the teacher, {words.PROTOCOL_WORDS[protocol]}",
        caption="One curve per mixer, each point against a teacher of its own size.",
        x_title="parameters of the teacher",
        x_words=lambda x: words.parameters(round(x)),
    )


def _family_name(report: Report, student: int) -> str:
    plan = report.subjects[student].plan
    return lineage_of(plan).describe_mixers() or report.subjects[student].label


def _point(report: Report, student: int, x: float, protocol: str) -> Point:
    row = report.average(student, protocol)
    assert row is not None
    assert row.recovery.interval is not None
    interval = row.recovery.interval.scaled(100)
    label = f"{report.subjects[student].label}: {words.estimate(row.recovery)} %"
    return Point(x, interval.point, interval.low, interval.high, label)


def _chart(
    series: Sequence[Curve], *, title: str, caption: str, x_title: str, x_words: Callable[[float], str]
) -> ChartView:
    points = [point for curve in series for point in curve.points]
    ends = [end for p in points for end in (p.low, p.high) if end is not None]
    plot = Plot(log_axis([point.x for point in points]), nice_axis(ends, include=[100.0]))
    chart = curves(
        series,
        plot,
        label=f"{title}. " + "; ".join(p.label for p in points),
        x_words=[x_words(tick) for tick in plot.x_axis.ticks],
        y_suffix=" %",
        reference=100.0,
    )
    return ChartView(title, caption, chart, tuple(curve.name for curve in series), "recovery", x_title)


def layer_rows(report: Report) -> list[LayerRow]:
    """The layers that each hybrid kept."""
    rows = []
    for i, subject in enumerate(report.subjects):
        lineage = lineage_of(subject.plan)
        if not lineage.is_hybrid:
            continue
        kept = lineage.softmax_layers
        best = next((row for p in report.protocols if (row := report.average(i, p)) is not None), None)
        about = f"{len(kept)} of {len(lineage.mixers)} layers softmax"
        if lineage.main_mixer:
            about += f", the others {MIXER_TITLES.get(lineage.main_mixer, lineage.main_mixer)}"
        if lineage.selector:
            about += f"; chosen by {lineage.selector}"
        said = f"softmax layers {', '.join(map(str, kept))}"
        rows.append(
            LayerRow(
                subject.label,
                about,
                layer_strip(len(lineage.mixers), kept, said),
                words.estimate(best.recovery) if best else words.NOTHING,
            )
        )
    return rows


def selector_views(report: Report) -> list[SelectorView]:
    """How selectors rated the layers, and how steady their choice was."""
    views = []
    for selection in report.selections:
        stability = ""
        if len(selection.history) > 1:
            first, last = selection.history[-2], selection.history[-1]
            union = set(first.layers) | set(last.layers)
            shared = len(set(first.layers) & set(last.layers)) / len(union) if union else 1.0
            stability = (
                f"Between {words.tokens(first.tokens)} and {words.tokens(last.tokens)} tokens the chosen set "
                f"kept a Jaccard similarity of {shared:.2f}."
            )
        importance = None
        if selection.scores:
            said = (
                f"importance per layer by {selection.selector}; kept: {', '.join(map(str, selection.layers))}"
            )
            importance = bars(selection.scores, selection.layers, said)
        views.append(
            SelectorView(
                f"{selection.selector}: layers {', '.join(map(str, selection.layers))}", importance, stability
            )
        )
    return views


def cost_rows(report: Report) -> list[CostRow]:
    """Efficiency records, in the order of the checkpoints."""
    order = {subject.plan.weights_id: i for i, subject in enumerate(report.subjects)}
    rows = []
    for cost in sorted(report.costs, key=lambda c: (order.get(c.weights_id, len(order)), c.context, c.batch)):
        index = order.get(cost.weights_id)
        rows.append(
            CostRow(
                label=report.subjects[index].label if index is not None else cost.weights_id,
                context=words.tokens(cost.context),
                batch=str(cost.batch),
                prefill=_rate(cost.prefill_tokens_per_second),
                decode=_rate(cost.decode_tokens_per_second),
                state=words.NOTHING if cost.state_bytes is None else words.bytes_(cost.state_bytes),
                peak=words.NOTHING if cost.peak_bytes is None else words.bytes_(cost.peak_bytes),
                device=cost.device,
            )
        )
    return rows


def decode_view(report: Report) -> ChartView | None:
    """Decode speed by context, one curve per checkpoint, at the batch size that most were measured at."""
    costs = [cost for cost in report.costs if cost.decode_tokens_per_second]
    if not costs:
        return None
    sizes = [cost.batch for cost in costs]
    batch = max(set(sizes), key=sizes.count)
    labels = {subject.plan.weights_id: subject.label for subject in report.subjects}
    families: dict[str, list[Point]] = {}
    for cost in costs:
        if cost.batch == batch and cost.decode_tokens_per_second:
            name = labels.get(cost.weights_id, cost.weights_id)
            said = f"{name} at {words.tokens(cost.context)}: {_rate(cost.decode_tokens_per_second)} tokens/s"
            families.setdefault(name, []).append(
                Point(cost.context, cost.decode_tokens_per_second, label=said)
            )
    series = [Curve(name, tuple(points)) for name, points in families.items()]
    points = [point for curve in series for point in curve.points]
    if len({point.x for point in points}) < 2:
        return None
    plot = Plot(
        log_axis([point.x for point in points]), nice_axis([point.y for point in points], include=[0.0])
    )
    chart = curves(
        series,
        plot,
        label="Decode speed by context. " + "; ".join(point.label for point in points),
        x_words=[words.tokens(round(tick)) for tick in plot.x_axis.ticks],
    )
    return ChartView(
        "Decode speed by context",
        f"Batch {batch}; higher is faster.",
        chart,
        tuple(curve.name for curve in series),
        "tokens/s",
        "context in tokens",
    )


def _rate(value: float | None) -> str:
    return words.NOTHING if value is None else words.count(round(value))
