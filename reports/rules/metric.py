"""What a rule of the gate can demand of a checkpoint."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from evalsuite.reports.rules.evidence import Evidence
from evalsuite.reports.rules.measurement import Measurement, NotMeasured
from evalsuite.reports.rules.rule import Rule
from evalsuite.reports.statistics.power import PlannedMargin

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


Measured = Callable[[Evidence, Rule, str | None, int], Measurement | NotMeasured]
"""(evidence, rule, protocol, checkpoint) → the quantity; `protocol` is None unless `protocols` is `each`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleMetric:
    """What a rule can demand of a checkpoint."""

    measure: Measured
    """What measures it."""
    bound: Literal["min", "max"]
    """Whether a rule states the least or the largest admissible value."""
    unit: Unit
    hint: str
    """What it is, for the documentation and the command line."""
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

    unchanged: float | None = None
    """Its value where nothing changed, if a rule can bound the distance from it in both directions."""
    planned: PlannedMargin | None = None
    """Its margin for a stated truth, from which `evalsuite gate --plan` computes power; None: what it varies
    by is not known before a run."""

    def check(self, threshold: float) -> str | None:
        """What a threshold is, if this one is not admissible; None if it is. NaN is not."""
        low, high, what = RANGES[self.unit]
        return None if low <= threshold <= high else what
