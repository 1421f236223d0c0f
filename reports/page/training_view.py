"""Losses along training, one chart per stage."""

from collections.abc import Sequence

import numpy as np

from evalsuite.reports import words
from evalsuite.reports.lineage import lineage_of
from evalsuite.reports.page.axes import nice_axis
from evalsuite.reports.page.charts import Curve, Plot, Point, curves
from evalsuite.reports.page.scaling_view import LOOKS, ChartView
from evalsuite.reports.report import Report
from evalsuite.reports.training import Losses

CAPTION = "Means of steps, without the steep first tenth of the stage."
POINTS = 60
"""A curve is drawn through at most so many means."""
APART = 8.0
"""A loss that ends so many times higher or lower than the usual one, as one that is multiplied by the length,
would press the others together; it has a chart of its own."""


def training_views(report: Report) -> list[ChartView]:
    """Charts per stage, in the order of the first student's stages, eight students each.

    Losses of different objectives, as KL and cross-entropy, are not drawn in one chart.
    """
    objectives = {
        (subject.label, stage.name): stage.objective
        for subject in report.subjects
        for stage in lineage_of(subject.plan).stages
    }
    stages: dict[str, dict[str, list[Losses]]] = {}
    for losses in report.losses:
        # A student that was trained and not evaluated goes with the others where they are of one kind.
        usual = {objective for (_, stage), objective in objectives.items() if stage == losses.stage}
        unknown = usual.pop() if len(usual) == 1 else ""
        objective = objectives.get((losses.label, losses.stage), unknown)
        stages.setdefault(losses.stage, {}).setdefault(objective, []).append(losses)
    return [
        view
        for stage, by_objective in stages.items()
        for objective, found in by_objective.items()
        for view in _charts(
            f"'{stage}'" + (f", {objective or 'unknown objective'}" if len(by_objective) > 1 else ""), found
        )
    ]


def _charts(stage: str, found: Sequence[Losses]) -> list[ChartView]:
    series = [Curve(losses.label, _means(losses)) for losses in found]
    if len({point.x for curve in series for point in curve.points}) < 2:
        return []
    usual = float(np.median([curve.points[-1].y for curve in series]))
    parts: list[tuple[Plot, list[Curve]]] = []
    for side in (0, 1, -1):
        alike = [curve for curve in series if _side(curve.points[-1].y, usual) == side]
        points = [point for curve in alike for point in curve.points]
        if points:
            plot = Plot(nice_axis([p.x for p in points]), nice_axis([p.y for p in points]), 240)
            parts += [(plot, alike[start : start + LOOKS]) for start in range(0, len(alike), LOOKS)]
    views = []
    for number, (plot, part) in enumerate(parts, 1):
        title = f"Loss of stage {stage}" + (f" ({number} of {len(parts)})" if len(parts) > 1 else "")
        ends = "; ".join(f"{curve.name} ends at {curve.points[-1].y:.4g}" for curve in part)
        chart = curves(
            part,
            plot,
            label=f"{title}. {ends}",
            x_words=[words.tokens(round(tick)) for tick in plot.x_axis.ticks],
        )
        legend = tuple(curve.name for curve in part)
        caption = CAPTION if len(part) > 1 else f"{part[0].name}. {CAPTION}"
        views.append(ChartView(title, caption, chart, legend, "loss", "tokens trained on"))
    return views


def _side(loss: float, usual: float) -> int:
    """1 for a loss far above the usual one, -1 for one far below it, else 0."""
    return 1 if loss > APART * usual else -1 if loss < usual / APART else 0


def _means(losses: Losses) -> tuple[Point, ...]:
    """Means over runs of steps; the first steps would press everything that follows to the ground."""
    size = -(-len(losses.tokens) // POINTS)
    points = []
    for start in range(len(losses.tokens) // 10, len(losses.tokens), size):
        mean = float(np.mean(losses.values[start : start + size]))
        at = losses.tokens[start : start + size][-1]
        points.append(Point(at, mean, label=f"{losses.label} at {words.tokens(at)}: {mean:.4g}"))
    return tuple(points)
