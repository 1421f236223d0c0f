"""Loss curves, one chart per training stage."""

from collections.abc import Sequence

import numpy as np

from evalsuite.reports import formatting
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.page.axes import nice_axis
from evalsuite.reports.page.charts import Curve, Plot, Point, curves
from evalsuite.reports.page.section import section
from evalsuite.reports.page.sections.scaling import MAX_SERIES, ChartView
from evalsuite.reports.records.loss_curves import LossCurve
from evalsuite.reports.report import Report

CAPTION = "Averaged over steps; the first tenth of the stage is omitted."
MAX_POINTS = 60
"""Points per curve."""
OUTLIER_RATIO = 8.0
"""Curves whose final loss differs from the median by more than this factor get a chart of their own."""


def training_views(report: Report) -> list[ChartView]:
    """Charts per stage, in the order of the first student's stages, at most eight students each.

    Losses of different objectives, such as KL and cross entropy, are not drawn in one chart.
    """
    objectives = {
        (checkpoint.label, stage.name): stage.objective
        for checkpoint in report.checkpoints
        for stage in lineage_of(checkpoint.plan).stages
    }
    stages: dict[str, dict[str, list[LossCurve]]] = {}
    for losses in report.loss_curves:
        # A student without scores has no lineage; it takes the objective of the stage if there is only one.
        known = {objective for (_, stage), objective in objectives.items() if stage == losses.stage}
        default = known.pop() if len(known) == 1 else ""
        objective = objectives.get((losses.label, losses.stage), default)
        stages.setdefault(losses.stage, {}).setdefault(objective, []).append(losses)
    return [
        view
        for stage, by_objective in stages.items()
        for objective, found in by_objective.items()
        for view in _charts(
            f"'{stage}'" + (f", {objective or 'unknown objective'}" if len(by_objective) > 1 else ""), found
        )
    ]


def _charts(stage: str, found: Sequence[LossCurve]) -> list[ChartView]:
    series = [Curve(losses.label, _means(losses)) for losses in found]
    if len({point.x for curve in series for point in curve.points}) < 2:
        return []
    median = float(np.median([curve.points[-1].y for curve in series]))
    parts: list[tuple[Plot, list[Curve]]] = []
    for side in (0, 1, -1):
        alike = [curve for curve in series if _outlier_side(curve.points[-1].y, median) == side]
        points = [point for curve in alike for point in curve.points]
        if points:
            plot = Plot(nice_axis([p.x for p in points]), nice_axis([p.y for p in points]), 240)
            parts += [(plot, alike[start : start + MAX_SERIES]) for start in range(0, len(alike), MAX_SERIES)]
    views = []
    for number, (plot, part) in enumerate(parts, 1):
        title = f"Loss in stage {stage}" + (f" ({number} of {len(parts)})" if len(parts) > 1 else "")
        ends = "; ".join(f"{curve.name} ends at {curve.points[-1].y:.4g}" for curve in part)
        chart = curves(
            part,
            plot,
            label=f"{title}. {ends}",
            x_labels=[formatting.tokens(round(tick)) for tick in plot.x_axis.ticks],
        )
        legend = tuple(curve.name for curve in part)
        caption = CAPTION if len(part) > 1 else f"{part[0].name}. {CAPTION}"
        views.append(ChartView(title, caption, chart, legend, "loss", "training tokens"))
    return views


def _outlier_side(loss: float, median: float) -> int:
    """1 for a loss far above the median, -1 for one far below it, else 0."""
    return 1 if loss > OUTLIER_RATIO * median else -1 if loss < median / OUTLIER_RATIO else 0


def _means(losses: LossCurve) -> tuple[Point, ...]:
    """Means over consecutive steps, without the first tenth, whose high loss would dominate the axis."""
    size = -(-len(losses.tokens) // MAX_POINTS)
    points = []
    for start in range(len(losses.tokens) // 10, len(losses.tokens), size):
        mean = float(np.mean(losses.values[start : start + size]))
        at = losses.tokens[start : start + size][-1]
        points.append(Point(at, mean, label=f"{losses.label} at {formatting.tokens(at)}: {mean:.4g}"))
    return tuple(points)


@section("training", "Training", order=75)
def training_section(report: Report) -> list[ChartView] | None:
    """The section; None without data."""
    return training_views(report) or None
