"""Measures of the rules on inference cost, such as `decode_ratio@32k >= 1.5` and `peak_gb@128k <= 80`.

The interval of such a rule is the range of the repeats, and of a ratio that of the worst and best quotient.
"""

from collections.abc import Callable

import numpy as np

from evalsuite.reports.analysis.measures.efficiency import (
    QUANTITIES,
    Quantity,
    by_context,
    ratios,
    setting,
    settings,
)
from evalsuite.reports.gate.evidence import NO_TEACHER, Evidence
from evalsuite.reports.gate.measurement import Measurement, NotMeasured
from evalsuite.reports.gate.policy import Rule
from evalsuite.reports.records.efficiency import EfficiencyRow
from evalsuite.reports.statistics.contrasts import Contrast

DRAWS = 2001
DEGREES = 100.0
"""Degrees of freedom of tails beyond the repeats: those of a normal distribution, practically."""


def ratio_of(quantity: Quantity) -> Callable[..., Measurement | NotMeasured]:
    """Measure teacher ÷ student in a quantity at the rule's context."""

    def measured(
        evidence: Evidence, rule: Rule, protocol: str | None, checkpoint: int
    ) -> Measurement | NotMeasured:
        teacher = evidence.tensor.checkpoints[checkpoint].teacher
        if teacher is None:
            return NO_TEACHER
        own, other = (evidence.tensor.checkpoints[i].plan.weights_id for i in (checkpoint, teacher))
        for where in settings(evidence.efficiency):
            rows = [row for row in evidence.efficiency if setting(row) == where]
            for each in ratios(rows, own, other, quantity):
                if each.context == rule.context:
                    return _measurement(each.point, each.low, each.high, _repeats(rows))
        return _missing(evidence, rule, QUANTITIES[quantity].title, [checkpoint, teacher])

    return measured


def value_of(quantity: Quantity, scale: float) -> Callable[..., Measurement | NotMeasured]:
    """Measure a quantity of the checkpoint itself at the rule's context, divided by `scale`."""

    def measured(
        evidence: Evidence, rule: Rule, protocol: str | None, checkpoint: int
    ) -> Measurement | NotMeasured:
        identifier = evidence.tensor.checkpoints[checkpoint].plan.weights_id
        for where in settings(evidence.efficiency):
            rows = [row for row in evidence.efficiency if setting(row) == where]
            found = by_context(rows, identifier, quantity).get(rule.context or 0)
            if found is not None:
                return _measurement(
                    found.median / scale, found.low / scale, found.high / scale, found.repeats
                )
        return _missing(evidence, rule, QUANTITIES[quantity].title, [checkpoint])

    return measured


def _repeats(rows: list[EfficiencyRow]) -> int:
    return min((row.ttft_ms.repeats for row in rows if row.ttft_ms is not None), default=1)


def _measurement(point: float, low: float, high: float, repeats: int) -> Measurement:
    draws = np.interp(np.linspace(0, 1, DRAWS), [0, 0.5, 1], [low, point, high])
    return Measurement(Contrast(point, draws, DEGREES, float(draws.var())), repeats, ())


def _missing(evidence: Evidence, rule: Rule, what: str, needed: list[int]) -> NotMeasured:
    labels = " and ".join(f"'{evidence.tensor.checkpoints[i].label}'" for i in needed)
    failed = [
        f"{row.label}: {row.status.replace('_', ' ')}"
        for row in evidence.efficiency
        if row.context == rule.context
        and row.status != "ok"
        and row.kind == "request"
        and row.weights_id in {evidence.tensor.checkpoints[i].plan.weights_id for i in needed}
    ]
    why = f" ({'; '.join(failed)})" if failed else ""
    return NotMeasured(
        f"the run has no {what} of {labels} at {rule.context:,} tokens{why}: repeat `evalsuite bench` with "
        f"--contexts {rule.context} and this run as --out"
    )


decode_ratio = ratio_of("decode")
prefill_ratio = ratio_of("prefill")
peak_throughput_ratio = ratio_of("peak_throughput")
ttft_ms = value_of("prefill", 1.0)
peak_gb = value_of("memory", 1e9)
