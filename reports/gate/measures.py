"""What measures the metrics of the gate's rules."""

from collections.abc import Callable

from evalsuite.reports.gate import efficiency_metrics, standard_metrics
from evalsuite.reports.gate.evidence import Evidence
from evalsuite.reports.gate.measurement import Measurement, NotMeasured
from evalsuite.reports.gate.policy import Rule
from evalsuite.reports.gate.regression import regression

Measure = Callable[[Evidence, Rule, str | None, int], Measurement | NotMeasured]
"""(evidence, rule, protocol, checkpoint) → the quantity; between the protocols, `protocol` is None."""

MEASURES: dict[str, Measure] = {
    "recovery": standard_metrics.recovery,
    "capped_recovery": standard_metrics.capped_recovery,
    "chance_normalized_recovery": standard_metrics.chance_normalized_recovery,
    "score": standard_metrics.score,
    "agreement": standard_metrics.agreement,
    "retained": standard_metrics.retained,
    "kl": standard_metrics.kl,
    "gap": standard_metrics.gap,
    "drop": standard_metrics.drop,
    "regression": regression,
    "decode_ratio": efficiency_metrics.decode_ratio,
    "prefill_ratio": efficiency_metrics.prefill_ratio,
    "peak_throughput_ratio": efficiency_metrics.peak_throughput_ratio,
    "ttft_ms": efficiency_metrics.ttft_ms,
    "peak_gb": efficiency_metrics.peak_gb,
}
"""Metric of evalsuite's own → what measures it."""


def measure(
    evidence: Evidence, rule: Rule, protocol: str | None, checkpoint: int
) -> Measurement | NotMeasured:
    """Measure the metric of a rule on one checkpoint."""
    own: Measure = rule.kind.measure or MEASURES[rule.metric]
    return own(evidence, rule, protocol, checkpoint)
