"""Decide rules on their intervals: pass, proven regression, or inconclusive."""

from collections.abc import Sequence
from dataclasses import dataclass

from evalsuite.reports.rules.measurement import ONE_RUN, Measurement
from evalsuite.reports.statistics.hypothesis_tests import documents_to_decide, holm
from evalsuite.reports.statistics.intervals import normal_quantile

POWER = 0.8
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
    """Documents that would decide the rule at this point estimate; None: decided, no number would do, or the
    interval is over training runs, too."""
    mde: float
    """Distance beyond the threshold at which this rule fails a checkpoint with probability 0.8."""


def decide(
    measured: Sequence[Measurement],
    thresholds: Sequence[float],
    at_least: Sequence[bool],
    confidence: float = 0.95,
    gains: Sequence[float | None] = (),
) -> list[Decision]:
    """Decide all rules of a policy together.

    A rule fails if, after Holm's correction over all rules, a one-sided test at (1 − confidence) / 2 rejects
    that the checkpoint is as good as required: the probability of any false alarm stays below that level. It
    passes if the entire interval at `confidence` meets the requirement. Otherwise it is inconclusive.

    A rule with a threshold on either side passes by two one-sided tests (TOST, Schuirmann 1987): the entire
    interval lies between its thresholds. It fails if either is proven to be crossed, with Bonferroni's
    correction over both.

    Args:
        measured: one measurement per rule and checkpoint.
        thresholds: threshold of each, in its unit.
        at_least: whether the quantity must be at least (else at most) the threshold.
        confidence: level of the two-sided interval of each rule.
        gains: threshold of each on its other side; None for a rule without. Empty: none has one.
    """
    alpha = (1 - confidence) / 2
    sides = [
        [
            each.margin(threshold).scaled(1 if floor else -1),
            *([] if gain is None else [each.required(gain).scaled(-1 if floor else 1)]),
        ]
        for each, threshold, floor, gain in zip(
            measured, thresholds, at_least, gains or [None] * len(measured), strict=True
        )
    ]
    # The tail beyond zero of a margin; for a positive margin it is above one half.
    p_values = [min(1.0, len(both) * min(side.scaled(-1).below(0.0) for side in both)) for both in sides]
    adjusted = holm(p_values)
    decisions = []
    for each, both, p in zip(measured, sides, adjusted, strict=True):
        margin = min(both, key=lambda side: side.quantile(alpha))
        low = margin.quantile(alpha)
        failing = margin.quantile(1 - alpha / len(measured) / len(both))
        needed = None
        if p <= alpha and margin.point < 0:
            outcome = REGRESSION
        elif low >= 0:
            outcome = PASS
        else:
            outcome = INCONCLUSIVE
            half = margin.point - low if margin.point >= 0 else failing - margin.point
            if each.over == ONE_RUN:
                needed = documents_to_decide(each.documents, margin.point, half)
        interval = each.interval(confidence)
        # The test must overcome the upper tail of the draws, which is longer than a normal one if documents
        # are few; the point must lie beyond it with probability 0.8.
        mde = (failing - margin.point + margin.deviation * normal_quantile(POWER)) / each.unit
        decisions.append(Decision(outcome, interval.low, interval.high, p, needed, mde))
    return decisions
