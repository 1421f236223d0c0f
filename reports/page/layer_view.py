"""Which layers stay softmax: what hybrids kept, how selectors rated and chose, and what it bought."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from evalsuite.reports import words
from evalsuite.reports.extras import Selection
from evalsuite.reports.lineage import MIXER_TITLES, lineage_of
from evalsuite.reports.page.axes import Axis, exact_axis, nice_axis
from evalsuite.reports.page.charts import Curve, Plot, Point, bars, curves, layer_strip
from evalsuite.reports.page.scaling_view import LOOKS, ChartView, comparable_students, recovery_charts
from evalsuite.reports.report import Report
from evalsuite.reports.statistics.stability import WINDOW, stability

STEADY = 0.9
"""Mean Jaccard similarity from which the KL-guided paper calls a choice stable."""


@dataclass(frozen=True, slots=True)
class LayerRow:
    """Which layers of a hybrid kept softmax."""

    label: str
    about: str
    strip: Markup
    recovery: str


@dataclass(frozen=True, slots=True)
class SelectorView:
    """How a selector rated the layers, and how steady its choice was."""

    title: str
    about: str
    importance: Markup | None
    measure: str
    steadiness: ChartView | None


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
            about += f", the others {_mixer(lineage.main_mixer)}"
        if lineage.selector:
            about += f"; chosen by {lineage.selector}"
        rows.append(
            LayerRow(
                subject.label,
                about,
                layer_strip(len(lineage.mixers), kept, f"softmax layers {_listed(kept)}"),
                words.estimate(best.recovery) if best else words.NOTHING,
            )
        )
    return rows


def layer_charts(report: Report) -> list[ChartView]:
    """Quality against the number of softmax layers: recovery of this report's hybrids, then of probes."""
    return [chart for p in report.protocols for chart in _recovery_by_layers(report, p)] + _probes(report)


def _recovery_by_layers(report: Report, protocol: str) -> list[ChartView]:
    """Hybrids of one selector and recipe; a student without softmax layers is every selector's first point.

    A variant that changes something else than the layers has no place on these curves.
    """
    changed = _changed_otherwise(report)
    families: dict[Hashable, list[int]] = {}
    without: dict[Hashable, list[int]] = {}
    for student in comparable_students(report, protocol):
        lineage = lineage_of(report.subjects[student].plan)
        if not lineage.mixers or lineage.main_mixer is None or not lineage.complete or student in changed:
            continue
        start = (report.subjects[student].teacher, lineage.main_mixer, (lineage.recipe or "").split(".")[0])
        if lineage.softmax_layers:
            families.setdefault((*start, lineage.selector), []).append(student)
        else:
            without.setdefault(start, []).append(student)
    whole = {
        key: [*without.get(key[:3], []), *each] for key, each in families.items() if isinstance(key, tuple)
    }

    def name_of(student: int) -> str:
        """What a family is called by its last student, which has softmax layers."""
        lineage = lineage_of(report.subjects[student].plan)
        return " · ".join(part for part in (_mixer(lineage.main_mixer or ""), lineage.selector) if part)

    return recovery_charts(
        report,
        protocol,
        {key: each[::-1] for key, each in whole.items()},
        lambda student: len(lineage_of(report.subjects[student].plan).softmax_layers),
        title="Recovery by number of softmax layers",
        caption="One curve per mixer and selector; whiskers are 95 % intervals over documents.",
        x_title="softmax layers",
        x_word=lambda x: f"{x:g}",
        name_of=name_of,
        log=False,
    )


def _changed_otherwise(report: Report) -> set[int]:
    """Variants with as many softmax layers as the student that they stand beside."""

    def layers(subject: int) -> int:
        return len(lineage_of(report.subjects[subject].plan).softmax_layers)

    return {
        student
        for variation in report.variations
        for member in variation.members
        if member.partner is not None and layers(member.subject) == layers(member.partner)
        for student in member.runs
    }


def _probes(report: Report) -> list[ChartView]:
    """What selectors' own students scored, one chart per question asked of them."""
    charts = []
    for what in dict.fromkeys(each.what for s in report.selections for each in s.quality):
        series = [
            Curve(name, points)
            for selection, name in zip(report.selections, _names(report.selections), strict=True)
            if (points := _quality_points(selection, what, name))
        ]
        drawn = [point for curve in series for point in curve.points]
        ends = [end for p in drawn for end in (p.y, p.low, p.high) if end is not None]
        plot = Plot(exact_axis([point.x for point in drawn]), nice_axis(ends))
        parts = [series[start : start + LOOKS] for start in range(0, len(series), LOOKS)]
        for number, part in enumerate(parts, 1):
            title = f"{what}, by number of softmax layers"
            title += f" ({number} of {len(parts)})" if len(parts) > 1 else ""
            chart = curves(
                part,
                plot,
                label=f"{title}. " + "; ".join(point.label for curve in part for point in curve.points),
                x_words=[f"{tick:g}" for tick in plot.x_axis.ticks],
                y_suffix=" %",
            )
            legend = tuple(curve.name for curve in part)
            charts.append(
                ChartView(title, "Students of the selectors.", chart, legend, "%", "softmax layers")
            )
    return charts


def _quality_points(selection: Selection, what: str, name: str) -> tuple[Point, ...]:
    return tuple(
        Point(
            len(each.layers),
            100 * each.score,
            None if each.low is None else 100 * each.low,
            None if each.high is None else 100 * each.high,
            f"{name}, {len(each.layers)} softmax layers ({_listed(each.layers)}): "
            f"{words.percent(each.score)} %",
        )
        for each in selection.quality
        if each.what == what
    )


def selector_views(report: Report) -> list[SelectorView]:
    """How selectors rated the layers, and how steady their choice was."""
    return [
        _selector(selection, name)
        for selection, name in zip(report.selections, _names(report.selections), strict=True)
    ]


def above_lowest(selection: Selection) -> tuple[list[float | None], str]:
    """Scores to draw, and what they are: from the lowest on where all are below 0, so that a longer bar is a
    better layer and small differences show."""
    known = [score for score in selection.scores if score is not None]
    if not known or max(known) > 0:
        return list(selection.scores), selection.measure
    lowest = min(known)
    scores = [None if score is None else score - lowest for score in selection.scores]
    return scores, f"{selection.measure} (drawn from the lowest, {lowest:.4g}, on)"


def _selector(selection: Selection, name: str) -> SelectorView:
    scores, measure = above_lowest(selection)
    said = f"{measure} per layer by {name}; kept: {_listed(selection.layers)}"
    parts = [f"keeps {len(selection.layers)} layers: {_listed(selection.layers)}"]
    if selection.stop is not None:
        parts.append(_stopped(selection))
    cost = [f"{words.tokens(selection.tokens)} tokens"] if selection.tokens else []
    if selection.seconds is not None and selection.seconds >= 1:
        cost.append(f"{selection.seconds:,.0f} s")
    if cost:
        parts.append(f"cost {' and '.join(cost)}")
    return SelectorView(
        title=name,
        about="; ".join(parts) + ".",
        importance=bars(scores, selection.layers, said) if any_known(scores) else None,
        measure=measure,
        steadiness=_steadiness(selection, name),
    )


def any_known(scores: Sequence[float | None]) -> bool:
    """Whether any layer was rated."""
    return any(score is not None for score in scores)


def _stopped(selection: Selection) -> str:
    stop = selection.stop
    assert stop is not None
    place = f"step {words.count(stop.step)}, " if stop.step is not None else ""
    text = f"{'stopped early' if stop.why == 'stable' else 'ran to its end'} at {place}"
    text += f"{words.tokens(stop.tokens)} tokens"
    if stop.planned and stop.why == "stable":
        saved = words.percent(1 - stop.tokens / stop.planned, 0)
        text += f", {saved} % fewer than the {words.tokens(stop.planned)} planned"
    return text


def _steadiness(selection: Selection, name: str) -> ChartView | None:
    """Rolling Jaccard similarity and backbone of the chosen set over the search."""
    history = selection.history
    if len({step.tokens for step in history}) < 3:
        return None
    found = stability([step.layers for step in history])
    backbone = [
        Point(
            step.tokens,
            at.backbone / max(1, len(step.layers)),
            label=f"at {words.tokens(step.tokens)} tokens {at.backbone} of {len(step.layers)} layers are in "
            "all of the last sets",
        )
        for step, at in zip(history, found, strict=True)
    ]
    alike = [
        Point(step.tokens, at.jaccard, label=f"at {words.tokens(step.tokens)} tokens {at.jaccard:.2f}")
        for step, at in zip(history, found, strict=True)
        if at.jaccard is not None
    ]
    last = found[-1]
    x_axis = nice_axis([step.tokens for step in history], include=[0], steps=4)
    plot = Plot(x_axis, Axis(0, 1, (0, 0.25, 0.5, 0.75, 1)), 176)
    said = "not known" if last.jaccard is None else f"{last.jaccard:.2f}"
    chart = curves(
        [Curve("mean Jaccard similarity", tuple(alike)), Curve("backbone ÷ layers kept", tuple(backbone))],
        plot,
        label=f"How steady the choice of {name} was. At the end the mean Jaccard similarity is {said}, the "
        f"backbone has {last.backbone} layers, and {last.union} layers were ever among the last sets.",
        x_words=[words.tokens(round(tick)) for tick in x_axis.ticks],
        reference=STEADY,
        marker=None if selection.stop is None else selection.stop.tokens,
    )
    caption = (
        f"Over the last {WINDOW} sets. At the end: Jaccard {said}, backbone {last.backbone} of "
        f"{len(history[-1].layers)}, union {last.union}. Dotted: {STEADY}"
        f"{' and where it stopped.' if selection.stop is not None else '.'}"
    )
    legend = ("mean Jaccard similarity", "backbone ÷ layers kept")
    return ChartView(f"{name}: how steady the choice was", caption, chart, legend, "", "tokens trained on")


def _names(selections: Sequence[Selection]) -> list[str]:
    """What each is called: its selector, with its mixer and size where that alone is not unique."""
    names = [selection.selector for selection in selections]
    return [
        name
        if names.count(name) == 1
        else f"{name} ({', '.join([*([_mixer(s.mixer)] if s.mixer else []), f'{len(s.layers)} layers'])})"
        for name, s in zip(names, selections, strict=True)
    ]


def _mixer(name: str) -> str:
    return MIXER_TITLES.get(name, name)


def _listed(layers: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(layers)))
