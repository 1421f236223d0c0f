"""The metrics of the gate's rules: one definition and one registration each.

    RULE_METRICS.add("lost", RuleMetric(measure=lost, bound="max", unit="points", hint="..."))

makes `{metric: lost, max: 3}` a rule of every policy.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from evalsuite.foundation.registry import Registry

Unit = Literal["fraction", "points", "nats", "ratio", "ms", "GB"]
RANGES: dict[Unit, tuple[float, float, str]] = {
    "fraction": (0.0, 1.5, "a fraction, 0 to 1.5: 0.95 means 95 %"),
    "points": (-100.0, 100.0, "in points, -100 to 100"),
    "nats": (0.0, 1000.0, "in nats per token, 0 to 1,000"),
    "ratio": (0.0, 1e6, "a ratio, 0 to 1,000,000: 1.5 means 1.5 times as good as the teacher"),
    "ms": (0.0, 1e9, "in milliseconds, 0 or more"),
    "GB": (0.0, 1e6, "in gigabytes (10⁹ bytes), 0 or more"),
}
"""Unit → least and largest threshold, and what a threshold is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMetric:
    """What a rule can demand of a checkpoint."""

    bound: Literal["min", "max"]
    """Whether a rule states the least or the largest admissible value."""
    unit: Unit
    hint: str
    """What it is, for the documentation and the command line."""
    measure: Callable[..., Any] | None = None
    """What measures it, as `measures.Measure`; None for evalsuite's own, which `measures` has by name."""
    has_option: bool = False
    """Whether `evalsuite gate` has an option for it: `--min-recovery`."""
    over_runs: bool = False
    """Whether a rule may decide over the training runs of a recipe."""
    protocols: Literal["each", "both", "none"] = "each"
    """`each`: a rule holds under every protocol, or the one that it states. `both` compares them and `none`
    has nothing to do with them: then a rule states none."""
    has_scope: bool = False
    """Whether a rule may select the informative benchmarks: `scope: informative`."""
    scope: Literal["all", "informative"] = "all"
    """Scope of a rule that states no scope, benchmark or category."""
    needs_baseline: bool = False
    """Whether a rule names a stored run to compare with."""
    needs_context: bool = False
    """Whether a rule states a context without a benchmark: `decode_ratio@32k`."""

    def check(self, threshold: float) -> str | None:
        """What a threshold is, if this one is not admissible; None if it is. NaN is not."""
        low, high, what = RANGES[self.unit]
        return None if low <= threshold <= high else what


RULE_METRICS: Registry[RuleMetric] = Registry("metric of a gate rule")


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
