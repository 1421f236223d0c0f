"""Layer selection: softmax layers of hybrids, importance scores of selectors, quality by number of layers."""

from collections.abc import Hashable, Mapping, Sequence

import plotly.graph_objects as go
from markupsafe import Markup

from evalsuite.foundation import counted
from evalsuite.reports import formatting
from evalsuite.reports.analysis.lineage import Lineage, lineage_of
from evalsuite.reports.blocks import Block, Part, Text, charts
from evalsuite.reports.figures.axes import exact_axis
from evalsuite.reports.figures.figure import Figure, Values, figure
from evalsuite.reports.figures.plots import Axis, Curve, Point, curves
from evalsuite.reports.figures.row_charts import layer_strip
from evalsuite.reports.figures.small_multiples import small_multiples
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.measures.ablations import ablations
from evalsuite.reports.measures.scaling import comparable_students, recovery_charts
from evalsuite.reports.records.sidecars import Selection, read_selections
from evalsuite.reports.report import Report
from evalsuite.reports.section import section
from evalsuite.reports.statistics.agreement import WINDOW, stability
from evalsuite.reports.table import CSV, Column, Table, Value, label_of, percentage

STABLE = 0.9
"""Mean Jaccard similarity above which the paper on KL-guided layer selection calls a selection stable."""
TICKS = 15
"""Layers that are numbered below bars, at most."""


def selections(report: Report) -> list[Selection]:
    """The searches for softmax layers of all runs."""
    return read_selections(report.runs)


def hybrids(report: Report) -> list[int]:
    """Indices of the checkpoints with softmax layers and others."""
    return [i for i, each in enumerate(report.checkpoints) if lineage_of(each).is_hybrid]


def _lineage(report: Report, checkpoint: int) -> Lineage:
    return lineage_of(report.checkpoints[checkpoint])


def _about(report: Report, checkpoint: int) -> str:
    lineage = _lineage(report, checkpoint)
    selected = f"; selected by {lineage.selector}" if lineage.selector else ""
    return lineage.describe_mixers() + selected


def _strip(report: Report, checkpoint: int) -> Markup:
    lineage = _lineage(report, checkpoint)
    softmax = lineage.softmax_layers
    label = f"softmax layers {_listed(softmax)}" if softmax else lineage.describe_mixers()
    return layer_strip(len(lineage.mixers), softmax, lineage.softmax_heads, label)


def _heads(lineage: Lineage) -> str:
    """Softmax heads by layer: ``3: 0 5, 7: 1``."""
    return ", ".join(
        f"{i}: {' '.join(map(str, heads))}" for i, heads in sorted(lineage.softmax_heads.items())
    )


def _recovery(report: Report, checkpoint: int) -> Value:
    """Under the first protocol that the checkpoint has."""
    rows = (report.leading_average(checkpoint, protocol) for protocol in report.protocols)
    return next((row.recovery for row in rows if row is not None), None)


LAYERS: Table[int] = Table(
    name="layers",
    title="Softmax layers",
    rows=hybrids,
    columns=(
        Column("label", "model", value=label_of, unit="text", about=_about),
        Column(
            "weights_id",
            value=lambda report, row: report.checkpoints[row].weights_id,
            unit="text",
            outputs=CSV,
        ),
        Column(
            "mixers",
            value=lambda report, row: _lineage(report, row).describe_mixers(),
            unit="text",
            outputs=CSV,
        ),
        Column(
            "selector", value=lambda report, row: _lineage(report, row).selector, unit="text", outputs=CSV
        ),
        Column(
            "softmax_layers",
            "layers",
            value=lambda report, row: " ".join(map(str, sorted(_lineage(report, row).softmax_layers))),
            unit="text",
            show=_strip,
            css=lambda report, row: "track",
        ),
        Column(
            "softmax_heads",
            value=lambda report, row: _heads(_lineage(report, row)),
            unit="text",
            outputs=CSV,
        ),
        percentage("recovery", value=_recovery, css=lambda report, row: "strong"),
    ),
    json_rows=lambda report: LAYERS.cells(report),
)
MEASURES.add("layers", Measure(tables=(LAYERS,), json={"selections": selections}))


def layer_charts(report: Report) -> list[Figure]:
    """Quality by number of softmax layers: recovery of the hybrids, then scores of probe students."""
    return [chart for p in report.protocols for chart in _recovery_by_layers(report, p)] + _probes(report)


def _recovery_by_layers(report: Report, protocol: str) -> list[Figure]:
    """One curve per selector, recipe and budget; students without softmax layers are its first point.

    Layers that no selector is known for are a curve of their own. Variants that change something other than
    the layers, and students with softmax heads in other layers, are left out.
    """
    changed = _changed_otherwise(report)
    families: dict[Hashable, list[int]] = {}
    without: dict[Hashable, list[int]] = {}
    for student in comparable_students(report, protocol):
        lineage = lineage_of(report.checkpoints[student])
        if not lineage.mixers or lineage.main_mixer is None or not lineage.complete or student in changed:
            continue
        if lineage.softmax_heads:
            continue
        start = (
            report.checkpoints[student].teacher,
            lineage.main_mixer,
            (lineage.recipe or "").split(".")[0],
            lineage.tokens,
            tuple(lineage.windows.items()),
        )
        if lineage.softmax_layers:
            families.setdefault((*start, _chosen_by(lineage)), []).append(student)
        else:
            without.setdefault(start, []).append(student)
    combined = {
        key: [*without.get(key[:-1], []), *each] for key, each in families.items() if isinstance(key, tuple)
    }

    def name_of(student: int) -> str:
        """Legend entry, from the last student of a family, which has softmax layers."""
        lineage = lineage_of(report.checkpoints[student])
        budget = f", {formatting.tokens(lineage.tokens)} tokens" if lineage.tokens else ""
        mixer = lineage.main_mixer or ""
        return f"{lineage.titles.get(mixer, mixer)} · {_chosen_by(lineage)}{budget}"

    return recovery_charts(
        report,
        protocol,
        {key: each[::-1] for key, each in combined.items()},
        lambda student: len(lineage_of(report.checkpoints[student]).softmax_layers),
        title="Recovery by number of softmax layers",
        caption="One curve per mixer, selector and budget; whiskers are 95 % intervals over documents.",
        x_title="softmax layers",
        x_label=lambda x: f"{x:g}",
        name_of=name_of,
        log=False,
    )


def _chosen_by(lineage: Lineage) -> str:
    """The selector of the softmax layers, or the layers themselves."""
    return lineage.selector or f"layers {_listed(lineage.softmax_layers)}"


def _changed_otherwise(report: Report) -> set[int]:
    """Variants with as many softmax layers and as many tokens as their baseline."""

    def size(checkpoint: int) -> tuple[int, int | None]:
        lineage = lineage_of(report.checkpoints[checkpoint])
        return len(lineage.softmax_layers), lineage.tokens

    return {
        student
        for ablation in report.of(ablations)
        for member in ablation.members
        if member.partner is not None and size(member.checkpoint) == size(member.partner)
        for student in member.runs
    }


def _probes(report: Report) -> list[Figure]:
    """Scores of the selectors' probe students, one chart per measured quantity."""
    figures: list[Figure] = []
    for what in dict.fromkeys(each.what for s in report.of(selections) for each in s.quality):
        series = [
            Curve(name, points)
            for selection, name in zip(report.of(selections), selection_names(report), strict=True)
            if (points := _quality_points(selection, what, name))
        ]
        counts = exact_axis([point.x for curve in series for point in curve.points]).ticks
        figures += small_multiples(
            series,
            Axis("softmax layers", ticks=[(count, f"{count:g}") for count in counts]),
            Axis("%"),
            title=f"{what}, by number of softmax layers",
            caption="Probe students trained by the selectors.",
        )
    return figures


def _quality_points(selection: Selection, what: str, name: str) -> tuple[Point, ...]:
    return tuple(
        Point(
            len(each.layers),
            100 * each.score,
            None if each.low is None else 100 * each.low,
            None if each.high is None else 100 * each.high,
            f"{name}, {counted(len(each.layers), 'softmax layer')} ({_listed(each.layers)}): "
            f"{formatting.percent(each.score)} %",
        )
        for each in selection.quality
        if each.what == what
    )


def _scores_above_minimum(selection: Selection) -> tuple[list[float | None], str]:
    """Bar heights and their description.

    Scores that are all negative are drawn relative to the lowest, so that a longer bar is a better layer.
    """
    known = [score for score in selection.unit_scores if score is not None]
    if not known or max(known) > 0:
        return list(selection.unit_scores), selection.measure
    lowest = min(known)
    scores = [None if score is None else score - lowest for score in selection.unit_scores]
    return scores, f"{selection.measure} (relative to the lowest, {lowest:.4g})"


def selector_blocks(selection: Selection, name: str) -> list[Block]:
    """Importance scores of one selector, and the stability of its selection during the search."""
    scores, measure = _scores_above_minimum(selection)
    parts = [f"Selects {selection.chosen}"]
    if selection.stop is not None:
        parts.append(_stopped(selection))
    cost = [f"{formatting.tokens(selection.tokens)} tokens"] if selection.tokens else []
    if selection.seconds is not None and selection.seconds >= 1:
        cost.append(f"{selection.seconds:,.0f} s")
    if cost:
        parts.append(f"cost {' and '.join(cost)}")
    importance = _importance(scores, selection, name, measure) if any_known(scores) else None
    return [Text("; ".join(parts) + "."), *charts([importance, _stability(selection, name)])]


def _importance(scores: Sequence[float | None], selection: Selection, name: str, measure: str) -> Figure:
    """One bar per layer or head, from 0; those that stay softmax are highlighted, None leaves a gap."""
    heads = len(selection.head_scores[0]) if selection.head_scores else 1
    labels = [
        f"{at // heads}, head {at % heads}" if selection.head_scores else str(at) for at in range(len(scores))
    ]
    softmax = frozenset(selection.units)
    traces = []
    for kind, is_softmax, paint in (("softmax", True, "var(--point)"), ("linear", False, "var(--wrong)")):
        mine = [(at, v) for at, v in enumerate(scores) if v is not None and (at in softmax) == is_softmax]
        if mine:
            traces.append(
                go.Bar(
                    x=[at / heads for at, _ in mine],
                    y=[value for _, value in mine],
                    marker={"color": paint},
                    name=kind,
                    hovertext=[f"layer {labels[at]}: {value:.4g}, {kind}" for at, value in mine],
                    hoverinfo="text",
                )
            )
    rows = tuple(
        (labels[at], "softmax" if at in softmax else "linear", "" if v is None else f"{v:.4g}")
        for at, v in enumerate(scores)
    )
    layout = {
        "xaxis": {
            "title": {"text": "layer"},
            "showgrid": False,
            "tick0": 0,
            "dtick": -(-len(scores) // heads // TICKS),
        },
        "yaxis": {"title": {"text": "importance"}},
        "bargap": 0.18,
        "barmode": "overlay",
    }
    return figure(
        traces,
        layout,
        title=f"{name}: importance by {'head' if selection.head_scores else 'layer'}",
        caption=f"{measure[:1].upper()}{measure[1:]}. Softmax: {selection.chosen}.",
        table=Values(("layer", "mixer", measure), rows),
        height=240,
    )


def any_known(scores: Sequence[float | None]) -> bool:
    """Whether any layer has a score."""
    return any(score is not None for score in scores)


def _stopped(selection: Selection) -> str:
    stop = selection.stop
    assert stop is not None
    place = f"step {formatting.count(stop.step)}, " if stop.step is not None else ""
    text = f"{'stopped early' if stop.reason == 'stable' else 'ran to the end'} at {place}"
    text += f"{formatting.tokens(stop.tokens)} tokens"
    if stop.planned and stop.reason == "stable":
        saved = formatting.percent(1 - stop.tokens / stop.planned, 0)
        text += f", {saved} % fewer than the {formatting.tokens(stop.planned)} planned"
    return text


def _stability(selection: Selection, name: str) -> Figure | None:
    """Rolling Jaccard similarity and backbone of the selected set during the search."""
    history = selection.history
    if len({step.tokens for step in history}) < 3:
        return None
    found = stability([step.layers for step in history])
    backbone = [
        Point(
            step.tokens,
            at.backbone / max(1, len(step.layers)),
            label=f"at {formatting.tokens(step.tokens)} tokens {at.backbone} of "
            f"{counted(len(step.layers), 'layer')} are in all of the last {WINDOW} sets",
        )
        for step, at in zip(history, found, strict=True)
    ]
    similarity = [
        Point(step.tokens, at.jaccard, label=f"at {formatting.tokens(step.tokens)} tokens {at.jaccard:.2f}")
        for step, at in zip(history, found, strict=True)
        if at.jaccard is not None
    ]
    last = found[-1]
    final = "unknown" if last.jaccard is None else f"{last.jaccard:.2f}"
    return curves(
        [
            Curve("mean Jaccard similarity", tuple(similarity)),
            Curve("backbone ÷ selected layers", tuple(backbone)),
        ],
        Axis("training tokens"),
        Axis("share", low=0),
        title=f"{name}: stability of the selection",
        caption=(
            f"Over the last {WINDOW} sets. At the end: Jaccard {final}, backbone {last.backbone} of "
            f"{len(history[-1].layers)}, union {last.union}. Dotted: {STABLE}"
            f"{' and the stopping point.' if selection.stop is not None else '.'}"
        ),
        reference=STABLE,
        marker=None if selection.stop is None else selection.stop.tokens,
        height=240,
    )


def selection_names(report: Report) -> list[str]:
    """Names of `selections`: selectors, with mixer and number of layers where these alone are not unique."""
    found = report.of(selections)
    titles: dict[str, str] = {}
    for checkpoint in report.checkpoints:
        titles.update(lineage_of(checkpoint).titles)
    return distinct_names(found, titles)


def distinct_names(found: Sequence[Selection], titles: Mapping[str, str]) -> list[str]:
    """As `selection_names`.

    Args:
        titles: mixer → its display name.
    """
    names = [selection.selector for selection in found]
    return [
        name
        if names.count(name) == 1
        else f"{name} ({f'{titles.get(s.mixer, s.mixer)}, ' if s.mixer else ''}"
        f"{counted(len(s.units), 'head' if s.head_scores else 'layer')})"
        for name, s in zip(names, found, strict=True)
    ]


def _listed(layers: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(layers)))


@section("layers", "Layer selection", order=60)
def layers_section(report: Report) -> list[Block]:
    """Layers of hybrids, quality by number of layers, selectors."""
    blocks: list[Block] = []
    if LAYERS.rows(report):
        what = "One square per layer, the first layer on the left; filled squares are softmax layers."
        if any(_lineage(report, row).softmax_heads for row in LAYERS.rows(report)):
            what += " A filled lower edge is that of a layer with softmax heads."
        blocks += [Text(what), LAYERS]
    blocks += charts(layer_charts(report))
    selectors = zip(report.of(selections), selection_names(report), strict=True)
    return [*blocks, *(Part(name, selector_blocks(each, name), css="selector") for each, name in selectors)]
