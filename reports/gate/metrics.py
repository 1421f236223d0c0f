"""The metrics of the gate's rules: one definition and one registration each.

    RULE_METRICS.add("lost", RuleMetric(measure=lost, bound="max", unit="points", hint="..."))

makes `{metric: lost, max: 3}` a rule of every policy; so do the `metrics` of a `Measure`, of any package.
"""

from typing import Any

from evalsuite.foundation.errors import nearest
from evalsuite.foundation.registry import Registry
from evalsuite.reports.rule_metric import RuleMetric

RULE_METRICS: Registry[RuleMetric] = Registry("metric of a gate rule")


def find(name: str) -> RuleMetric | None:
    """The metric of a name: evalsuite's own, or that of a registered measure; None if there is none."""
    return RULE_METRICS[name] if name in RULE_METRICS else rule_metrics().get(name)


def rule_metrics() -> dict[str, RuleMetric]:
    """All metrics by name: evalsuite's own, then those of the measures that can be used."""
    from evalsuite.reports.measure import MEASURES, usable  # imports Plotly, which few gates need

    found = dict(RULE_METRICS)
    for measure in usable():
        for name, metric in MEASURES[measure].metrics.items():
            found.setdefault(name, metric)
    return found


def unknown(name: str) -> str:
    """Message about a name that no metric has, with the measures that cannot be used."""
    from evalsuite.reports.measure import problems

    return "; ".join([f"unknown metric{nearest(name, rule_metrics())}", *problems()])


def option_names() -> dict[str, str]:
    """Option → metric, such as `min_recovery` → `recovery`."""
    return {f"{each.bound}_{name}": name for name, each in RULE_METRICS.items() if each.has_option}


RULE_METRICS.add(
    "recovery",
    RuleMetric(
        bound="min",
        unit="fraction",
        hint="recovery, as a fraction of the teacher, e.g. 0.9",
        has_option=True,
        over_runs=True,
        has_scope=True,
        scope="informative",
    ),
)
RULE_METRICS.add(
    "capped_recovery",
    RuleMetric(
        bound="min",
        unit="fraction",
        hint="recovery in which no benchmark counts above its teacher, as a fraction of the teacher",
        has_scope=True,
        scope="informative",
    ),
)
RULE_METRICS.add(
    "chance_normalized_recovery",
    RuleMetric(
        bound="min",
        unit="fraction",
        hint="recovery after subtracting the chance level, as a fraction of the teacher",
        over_runs=True,
        has_scope=True,
        scope="informative",
    ),
)
RULE_METRICS.add(
    "score",
    RuleMetric(bound="min", unit="fraction", hint="the checkpoint's own macro average", has_scope=True),
)
RULE_METRICS.add(
    "agreement",
    RuleMetric(
        bound="min",
        unit="fraction",
        hint="share of documents with the teacher's choice or extracted answer, e.g. 0.8",
        has_option=True,
        has_scope=True,
    ),
)
RULE_METRICS.add(
    "retained",
    RuleMetric(
        bound="min",
        unit="fraction",
        hint="share of the teacher's right answers that stay right, e.g. 0.85",
        has_option=True,
        has_scope=True,
    ),
)
RULE_METRICS.add(
    "kl",
    RuleMetric(
        bound="max",
        unit="nats",
        hint="KL(teacher ‖ student) at the right answers, in nats per token, e.g. 0.3",
        has_option=True,
        protocols="none",
    ),
)
RULE_METRICS.add(
    "gap",
    RuleMetric(
        bound="max",
        unit="points",
        hint="gap between the protocols, in points, e.g. 5",
        has_option=True,
        protocols="both",
    ),
)
RULE_METRICS.add(
    "drop",
    RuleMetric(
        bound="max",
        unit="points",
        hint="teacher − student, in points",
        over_runs=True,
        has_scope=True,
        scope="informative",
    ),
)
RULE_METRICS.add(
    "regression",
    RuleMetric(
        bound="max",
        unit="points",
        hint="points lost relative to the same checkpoint in `baseline`",
        needs_baseline=True,
    ),
)

_COST: dict[str, Any] = {"protocols": "none", "needs_context": True}
RULE_METRICS.add(
    "decode_ratio",
    RuleMetric(
        bound="min",
        unit="ratio",
        hint="teacher's decode step ÷ the student's, of one sequence at a context",
        **_COST,
    ),
)
RULE_METRICS.add(
    "prefill_ratio",
    RuleMetric(
        bound="min", unit="ratio", hint="teacher's time to first token ÷ the student's at a context", **_COST
    ),
)
RULE_METRICS.add(
    "peak_throughput_ratio",
    RuleMetric(
        bound="min", unit="ratio", hint="peak decode throughput ÷ the teacher's at a context", **_COST
    ),
)
RULE_METRICS.add(
    "ttft_ms",
    RuleMetric(bound="max", unit="ms", hint="time to first token of one prompt at a context", **_COST),
)
RULE_METRICS.add(
    "peak_gb",
    RuleMetric(
        bound="max", unit="GB", hint="peak GPU memory of one sequence at a context, weights included", **_COST
    ),
)
