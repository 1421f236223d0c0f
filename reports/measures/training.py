"""Training: loss curves and measurements on held-out documents, one chart of each per training stage."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from evalsuite.reports import formatting
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.figures.figure import Figure, Values
from evalsuite.reports.figures.plots import Axis, Curve, Point
from evalsuite.reports.figures.small_multiples import small_multiples
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.records.loss_curves import LossCurve, read_loss_curves
from evalsuite.reports.report import Report
from evalsuite.reports.run import Checkpoint
from evalsuite.reports.table import Column, Table, Value

CAPTION = "Averaged over steps; the first tenth of the stage is omitted."
VALIDATION = {
    "validation_kl": ("Held-out KL(teacher ‖ student)", "nats per token"),
    "validation_ppl": ("Held-out perplexity", "perplexity"),
}
"""Measurement → title and axis."""
HELD_OUT = "On held-out documents, which the recipe's sources leave out of the training data."
MAX_POINTS = 60
"""Points per curve."""
OUTLIER_RATIO = 8.0
"""Curves whose final loss differs from the median by more than this factor get a chart of their own."""


def loss_curves(report: Report) -> list[LossCurve]:
    """The losses of all runs under the labels of the report; checkpoints that are left out have none."""
    merged = report.tensor.merged

    def shown(run: int, checkpoint: Checkpoint) -> str | None:
        return next((each.label for each in merged.checkpoints if each.has(run, checkpoint)), None)

    labels = [
        {each.label: shown(run, each) for each in plan.checkpoints} for run, plan in enumerate(merged.plans)
    ]
    return read_loss_curves(report.runs, labels)


@dataclass(frozen=True, slots=True)
class Trained:
    """One student in one stage."""

    curve: LossCurve
    objective: str
    family: str
    """Of its mixers; empty if unknown."""


def trained(report: Report) -> list[Trained]:
    """Every student and stage with losses."""
    objectives = {
        (checkpoint.label, stage.name): stage.objective
        for checkpoint in report.checkpoints
        for stage in lineage_of(checkpoint).stages
    }
    families = {each.label: lineage_of(each).family for each in report.checkpoints}
    found = []
    for losses in report.of(loss_curves):
        # A student without scores has no lineage; it takes the objective of the stage if there is only one.
        known = {objective for (_, stage), objective in objectives.items() if stage == losses.stage}
        default = known.pop() if len(known) == 1 else ""
        objective = objectives.get((losses.label, losses.stage), default)
        found.append(Trained(losses, objective, families.get(losses.label, "")))
    return found


def training_views(report: Report) -> list[Figure]:
    """Charts per stage, in the order of the first student's stages; of many students, one a family.

    Losses of different objectives, such as KL and cross entropy, are not drawn in one chart.
    """
    stages: dict[str, dict[str, list[Trained]]] = {}
    for each in trained(report):
        stages.setdefault(each.curve.stage, {}).setdefault(each.objective, []).append(each)
    views = []
    for stage, by_objective in stages.items():
        for objective, found in by_objective.items():
            name = f", {objective or 'unknown objective'}" if len(by_objective) > 1 else ""
            views += _charts(f"'{stage}'{name}", found)
        views += _validation_charts(stage, [each for found in by_objective.values() for each in found])
    return views


def _validation_charts(stage: str, found: Sequence[Trained]) -> list[Figure]:
    """Charts per measurement that two steps of the stage or more have, whatever the objectives."""
    charts = []
    for name, (title, unit) in VALIDATION.items():
        series = [
            Curve(
                each.curve.label,
                tuple(
                    Point(at, value, label=f"{each.curve.label} at {formatting.tokens(at)}: {value:.4g}")
                    for at, value in points
                ),
                each.family,
            )
            for each in found
            if (points := each.curve.validation.get(name))
        ]
        if len({point.x for curve in series for point in curve.points}) > 1:
            charts += small_multiples(
                series,
                Axis("training tokens"),
                Axis(unit),
                title=f"{title} in stage '{stage}'",
                caption=HELD_OUT if len(series) > 1 else f"{series[0].name}. {HELD_OUT}",
                table=_final_values(series, unit),
            )
    return charts


def _final_values(series: Sequence[Curve], what: str) -> Values:
    return Values(
        ("model", f"final {what}"), tuple((each.name, f"{each.points[-1].y:.4g}") for each in series)
    )


def _charts(stage: str, found: Sequence[Trained]) -> list[Figure]:
    series = [Curve(each.curve.label, _means(each.curve), each.family) for each in found]
    if len({point.x for curve in series for point in curve.points}) < 2:
        return []
    median = float(np.median([curve.points[-1].y for curve in series]))
    parts = [
        alike
        for side in (0, 1, -1)
        if (alike := [curve for curve in series if _outlier_side(curve.points[-1].y, median) == side])
    ]
    return [
        chart
        for number, part in enumerate(parts, 1)
        for chart in small_multiples(
            part,
            Axis("training tokens"),
            Axis("loss"),
            title=f"Loss in stage {stage}" + (f" ({number} of {len(parts)})" if len(parts) > 1 else ""),
            caption=CAPTION if len(part) > 1 else f"{part[0].name}. {CAPTION}",
            table=_final_values(part, "loss"),
        )
    ]


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


def _of(value: Callable[[LossCurve], Value]) -> Callable[[Report, Trained], Value]:
    return lambda report, row: value(row.curve)


def _last(name: str) -> Callable[[Report, Trained], Value]:
    return _of(lambda curve: points[-1][1] if (points := curve.validation.get(name)) else None)


TRAINING: Table[Trained] = Table(
    name="training",
    title="Training",
    rows=trained,
    columns=(
        Column("label", "model", value=_of(lambda curve: curve.label), unit="text"),
        Column("stage", value=_of(lambda curve: curve.stage), unit="text"),
        Column("objective", unit="text"),
        Column("steps", value=_of(lambda curve: len(curve.tokens))),
        Column("tokens", hint="Of all stages so far.", value=_of(lambda curve: curve.tokens[-1])),
        Column("loss", hint="Of the last step.", value=_of(lambda curve: curve.values[-1]), digits=4),
        *(Column(name, hint="The last measurement.", value=_last(name), digits=4) for name in VALIDATION),
    ),
    json_rows=lambda report: TRAINING.cells(report),
    order=65,
    figures=training_views,
    shows_rows=False,
)
MEASURES.add("training", Measure(tables=(TRAINING,)))
