"""Decide rules on their intervals: pass, proven regression, or inconclusive."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evalsuite.reports.gate.evaluator import Measurement
from evalsuite.reports.statistics.hypothesis_tests import documents_to_decide, holm
from evalsuite.reports.statistics.intervals import normal_quantile

POWER_QUANTILE = normal_quantile(0.8)
PASS, REGRESSION, INCONCLUSIVE, UNMEASURED = "pass", "regression", "inconclusive", "unmeasured"


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on one measured rule, in the unit of its threshold."""

    outcome: str
    low: float
    high: float
    p_worse: float
    """One-sided p-value of 'as good as required', with Holm's correction over all rules."""
    documents_needed: int | None
    """Documents that would decide the rule at this point estimate; None: decided, or no number would do."""
    mde: float
    """Distance beyond the threshold at which this rule fails a checkpoint with probability 0.8."""


def decide(
    measured: Sequence[Measurement],
    thresholds: Sequence[float],
    at_least: Sequence[bool],
    confidence: float = 0.95,
) -> list[Decision]:
    """Decide all rules of a policy together.

    A rule fails if, after Holm's correction over all rules, a one-sided test at (1 − confidence) / 2 rejects
    that the checkpoint is as good as required: the probability of any false alarm stays below that level. It
    passes if the entire interval at `confidence` meets the requirement. Otherwise it is inconclusive.

    Args:
        measured: one measurement per rule and checkpoint.
        thresholds: threshold of each, in its unit.
        at_least: whether the quantity must be at least (else at most) the threshold.
        confidence: level of the two-sided interval of each rule.
    """
    alpha = (1 - confidence) / 2
    margins = [
        (each.draws - threshold) * (1 if floor else -1)
        for each, threshold, floor in zip(measured, thresholds, at_least, strict=True)
    ]
    p_values = [(1 + int((margin >= 0).sum())) / (1 + len(margin)) for margin in margins]
    adjusted = holm(p_values)
    decisions = []
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
        # The test must overcome the upper tail of the draws, which is longer than a normal one if documents
        # are few; the point must lie beyond it with probability 0.8.
        mde = failing - point + POWER_QUANTILE * float(margin.std())
        decisions.append(Decision(outcome, ends[0], ends[1], p, needed, mde))
    return decisions
