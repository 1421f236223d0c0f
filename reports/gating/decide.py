"""Deciding on intervals: passed, proven to fail, or not known yet."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evalsuite.reports.gating.measure import Measured
from evalsuite.reports.statistics.holm import holm
from evalsuite.reports.statistics.power import documents_to_decide
from evalsuite.reports.statistics.wilson import normal_quantile

POWER_QUANTILE = normal_quantile(0.8)
PASS, REGRESSION, INCONCLUSIVE, UNMEASURED = "pass", "regression", "inconclusive", "unmeasured"


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a measured line comes to, in the unit of its threshold."""

    outcome: str
    low: float
    high: float
    p_worse: float
    """Evidence for a regression: one-sided p of 'as good as demanded', corrected by Holm over all lines."""
    documents_needed: int | None
    """Documents at which it could be decided, if the point stays; None: no number would do, or decided."""
    detectable: float
    """How far beyond the threshold a checkpoint must be for this line to fail it with probability 0.8."""


def rule(
    measured: Sequence[Measured],
    thresholds: Sequence[float],
    at_least: Sequence[bool],
    confidence: float = 0.95,
) -> list[Ruling]:
    """Decide all lines of a policy together.

    A line fails when, after Holm's correction over all lines, a one-sided test at (1 − confidence) / 2
    rejects that the checkpoint is as good as demanded: the chance of any false alarm stays below that. It
    passes when the whole interval at `confidence` is on the good side. Else it is inconclusive.

    Args:
        measured: one per line and checkpoint.
        thresholds: of each, in its unit.
        at_least: whether the quantity must be at least (else at most) the threshold.
        confidence: level of the two-sided interval of each line.
    """
    alpha = (1 - confidence) / 2
    margins = [
        (each.draws - threshold) * (1 if floor else -1)
        for each, threshold, floor in zip(measured, thresholds, at_least, strict=True)
    ]
    p_values = [(1 + int((margin >= 0).sum())) / (1 + len(margin)) for margin in margins]
    adjusted = holm(p_values)
    rulings = []
    for each, threshold, floor, margin, p in zip(
        measured, thresholds, at_least, margins, adjusted, strict=True
    ):
        sign = 1 if floor else -1
        point = (each.point - threshold) * sign
        low, high = np.quantile(margin, [alpha, 1 - alpha])
        failing = float(np.quantile(margin, 1 - alpha / len(measured)))
        needed = None
        if p <= alpha and point < 0:
            outcome = REGRESSION
        elif low >= 0:
            outcome = PASS
        else:
            outcome = INCONCLUSIVE
            half = point - float(low) if point >= 0 else failing - point
            needed = documents_to_decide(each.documents, point, half)
        ends = sorted((threshold + sign * float(low), threshold + sign * float(high)))
        # What the test must overcome is the upper tail of the draws, longer than a normal one where documents
        # are few; the point must lie beyond it with probability 0.8.
        detectable = failing - point + POWER_QUANTILE * float(margin.std())
        rulings.append(Ruling(outcome, ends[0], ends[1], p, needed, detectable))
    return rulings
