"""Losses along training, one chart per stage."""

from collections.abc import Sequence

import numpy as np

from evalsuite.reports import words
from evalsuite.reports.extras import Losses
from evalsuite.reports.page.axes import nice_axis
from evalsuite.reports.page.charts import Curve, Plot, Point, curves
from evalsuite.reports.page.scaling_view import LOOKS, ChartView
from evalsuite.reports.report import Report

CAPTION = "Means of steps, without the steep first tenth of the stage."
POINTS = 60
"""A curve is drawn through at most so many means."""


def training_views(report: Report) -> list[ChartView]:
    """Charts per stage, in the order of the first student's stages, eight students each."""
    stages: dict[str, list[Losses]] = {}
    for losses in report.losses:
        stages.setdefault(losses.stage, []).append(losses)
    return [view for stage, curves_of in stages.items() for view in _charts(stage, curves_of)]


def _charts(stage: str, found: Sequence[Losses]) -> list[ChartView]:
    series = [Curve(losses.label, _means(losses)) for losses in found]
    points = [point for curve in series for point in curve.points]
    if len({point.x for point in points}) < 2:
        return []
    plot = Plot(nice_axis([point.x for point in points]), nice_axis([point.y for point in points]), 240)
    parts = [series[start : start + LOOKS] for start in range(0, len(series), LOOKS)]
    views = []
    for number, part in enumerate(parts, 1):
        title = f"Loss of stage '{stage}'" + (f" ({number} of {len(parts)})" if len(parts) > 1 else "")
        ends = "; ".join(f"{curve.name} ends at {curve.points[-1].y:.4g}" for curve in part)
        chart = curves(
            part,
            plot,
            label=f"{title}. {ends}",
            x_words=[words.tokens(round(tick)) for tick in plot.x_axis.ticks],
        )
        legend = tuple(curve.name for curve in part)
        views.append(ChartView(title, CAPTION, chart, legend, "loss", "tokens trained on"))
    return views


def _means(losses: Losses) -> tuple[Point, ...]:
    """Means over runs of steps; the first steps would press everything that follows to the ground."""
    size = -(-len(losses.tokens) // POINTS)
    points = []
    for start in range(len(losses.tokens) // 10, len(losses.tokens), size):
        mean = float(np.mean(losses.values[start : start + size]))
        at = losses.tokens[start : start + size][-1]
        points.append(Point(at, mean, label=f"{losses.label} at {words.tokens(at)}: {mean:.4g}"))
    return tuple(points)
