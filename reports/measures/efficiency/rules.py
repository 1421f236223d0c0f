"""Rules of the gate on inference cost, such as `decode_ratio@32k >= 1.5` and `peak_gb@128k <= 80`.

The interval of such a rule is the range of the repeats, and of a ratio that of the worst and best quotient.
"""

from typing import Any

import numpy as np

from evalsuite.reports.analysis.result_tensor import ResultTensor
from evalsuite.reports.measures.efficiency.comparison import (
    QUANTITIES,
    Quantity,
    by_context,
    ratios,
    setting,
    settings,
)
from evalsuite.reports.records.efficiency import EfficiencyRow, read_efficiency
from evalsuite.reports.rules.evidence import NO_TEACHER, Evidence
from evalsuite.reports.rules.measurement import Measurement, NotMeasured
from evalsuite.reports.rules.metric import Measured, RuleMetric
from evalsuite.reports.rules.rule import Rule
from evalsuite.reports.statistics.contrasts import Contrast

DRAWS = 2001
DEGREES = 100.0
"""Degrees of freedom of tails beyond the repeats: those of a normal distribution, practically."""


def _measured(tensor: ResultTensor) -> list[EfficiencyRow]:
    return read_efficiency(tensor.merged.runs)


def _by_setting(tensor: ResultTensor) -> list[list[EfficiencyRow]]:
    """The measurements of each setting, that of most of them first."""
    rows = _measured(tensor)
    return [[row for row in rows if setting(row) == where] for where in settings(rows)]


def _ratio_of(quantity: Quantity) -> Measured:
    """Measure teacher ÷ student in a quantity at the rule's context."""

    def measured(
        evidence: Evidence, rule: Rule, protocol: str | None, checkpoint: int
    ) -> Measurement | NotMeasured:
        teacher = evidence.tensor.checkpoints[checkpoint].teacher
        if teacher is None:
            return NO_TEACHER
        own, other = (evidence.tensor.checkpoints[i].weights_id for i in (checkpoint, teacher))
        for rows in evidence.of(_by_setting):
            for each in ratios(rows, own, other, quantity):
                if each.context == rule.context:
                    return _measurement(each.point, each.low, each.high, _repeats(rows))
        return _missing(evidence, rule, QUANTITIES[quantity].title, [checkpoint, teacher])

    return measured


def _value_of(quantity: Quantity, scale: float = 1.0) -> Measured:
    """Measure a quantity of the checkpoint itself at the rule's context, divided by `scale`."""

    def measured(
        evidence: Evidence, rule: Rule, protocol: str | None, checkpoint: int
    ) -> Measurement | NotMeasured:
        identifier = evidence.tensor.checkpoints[checkpoint].weights_id
        for rows in evidence.of(_by_setting):
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
        for row in evidence.of(_measured)
        if row.context == rule.context
        and row.status != "ok"
        and row.kind == "request"
        and row.weights_id in {evidence.tensor.checkpoints[i].weights_id for i in needed}
    ]
    why = f" ({'; '.join(failed)})" if failed else ""
    return NotMeasured(
        f"the run has no {what} of {labels} at {rule.context:,} tokens{why}: repeat `evalsuite bench` with "
        f"--contexts {rule.context} and this run as --out"
    )


_AT_A_CONTEXT: dict[str, Any] = {"protocols": "none", "needs_context": True}
METRICS = {
    "decode_ratio": RuleMetric(
        measure=_ratio_of("decode"),
        bound="min",
        unit="ratio",
        hint="teacher's decode step ÷ the student's, of one sequence at a context",
        **_AT_A_CONTEXT,
    ),
    "prefill_ratio": RuleMetric(
        measure=_ratio_of("prefill"),
        bound="min",
        unit="ratio",
        hint="teacher's time to first token ÷ the student's at a context",
        **_AT_A_CONTEXT,
    ),
    "peak_throughput_ratio": RuleMetric(
        measure=_ratio_of("peak_throughput"),
        bound="min",
        unit="ratio",
        hint="peak decode throughput ÷ the teacher's at a context",
        **_AT_A_CONTEXT,
    ),
    "ttft_ms": RuleMetric(
        measure=_value_of("prefill"),
        bound="max",
        unit="ms",
        hint="time to first token of one prompt at a context",
        **_AT_A_CONTEXT,
    ),
    "peak_gb": RuleMetric(
        measure=_value_of("memory", 1e9),
        bound="max",
        unit="GB",
        hint="peak GPU memory of one sequence at a context, weights included",
        **_AT_A_CONTEXT,
    ),
}
