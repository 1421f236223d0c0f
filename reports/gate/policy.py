"""The policy of a gate: its rules, read strictly from YAML or from command-line options."""

from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from evalsuite.foundation import ConfigError, nearest
from evalsuite.foundation.strict import Strict, parse, read_yaml
from evalsuite.foundation.taxonomy import Category, Protocol
from evalsuite.reports.records.run_selection import ErrorRule, RunSelection

SCHEMA = 2
Metric = Literal["recovery", "chance_normalized_recovery", "score", "gap", "drop", "regression"]
METRICS: tuple[Metric, ...] = get_args(Metric)
AT_LEAST = ("recovery", "chance_normalized_recovery", "score")
"""Fractions with a `min`; the other metrics are points with a `max`."""
OVER_RUNS = ("recovery", "chance_normalized_recovery", "drop")
"""Metrics that can be decided over training runs."""
RETIRED = {"lines": "rules", "centred_recovery": "chance_normalized_recovery", "deficit": "drop"}
"""Keys and metrics of schema 1, and what they are called now."""


class Rule(Strict):
    """One requirement of a policy."""

    metric: Metric
    """`recovery`, `chance_normalized_recovery`: share of the teacher. `score`: a fraction. `gap`, `drop`:
    points relative to the teacher. `regression`: points lost relative to the checkpoint of a stored run."""
    min: float | None = None
    """Lower bound of recovery, chance_normalized_recovery and score: a fraction, 0.95 for 95 %."""
    max: float | None = None
    """Upper bound of gap, drop and regression, in points."""
    name: str | None = None
    protocol: Protocol | None = None
    """None: every protocol of the run, one result each. A gap takes none."""
    benchmark: str | None = None
    category: Category | None = None
    context: int | None = Field(default=None, ge=1)
    """With a benchmark that has contexts: the stated length in tokens."""
    baseline: str | None = None
    """For regression: a stored run folder, relative to the folder of the policy."""
    baseline_checkpoint: str | None = None
    """Label in the baseline; default: the same label, or the only student."""
    over: Literal["documents", "runs"] = "documents"
    """`documents`: decide on the checkpoint itself. `runs`: on its recipe, the mean of all training runs that
    differ only by seed, with the spread between them; needs two runs or more."""
    checkpoints: tuple[str, ...] = ()
    """Labels; default: those of the policy."""

    @model_validator(mode="after")
    def _is_consistent(self) -> "Rule":
        wanted, other = ("min", "max") if self.metric in AT_LEAST else ("max", "min")
        threshold = getattr(self, wanted)
        if threshold is None or getattr(self, other) is not None:
            raise ValueError(f"{self.metric} takes '{wanted}', and only that")
        if wanted == "min" and not 0 <= threshold <= 1.5:
            raise ValueError("'min' is a fraction: 0.95 means 95 %")
        if wanted == "max" and not -100 <= threshold <= 100:
            raise ValueError("'max' is in points, -100 to 100")
        if self.benchmark is not None and self.category is not None:
            raise ValueError("give either 'benchmark' or 'category'")
        if self.context is not None and self.benchmark is None:
            raise ValueError("'context' needs a 'benchmark'")
        if (self.baseline is not None) != (self.metric == "regression"):
            raise ValueError("'baseline' belongs to regression, and regression needs it")
        if self.over == "runs" and self.metric not in OVER_RUNS:
            raise ValueError(f"'over: runs' belongs to {', '.join(OVER_RUNS)}")
        if self.metric == "gap" and self.protocol is not None:
            raise ValueError("a gap is between the protocols: leave 'protocol' out")
        return self

    @property
    def threshold(self) -> float:
        """The `min` or the `max`."""
        value = self.min if self.metric in AT_LEAST else self.max
        assert value is not None  # guaranteed by the validator
        return value


class Policy(Strict):
    """The rules of a gate."""

    schema_: Literal[2] = Field(default=2, alias="schema")
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Level of the deciding intervals; the rate of false alarms over all rules stays below 1 − confidence."""
    inconclusive: Literal["stop", "tolerate"] = "stop"
    """`stop`: exit code 2 if documents are too few to decide a rule; `tolerate`: pass and print the rule."""
    checkpoints: tuple[str, ...] = ()
    """Labels of the checkpoints to evaluate; default: every student of the run."""
    min_coverage: float | None = Field(default=None, gt=0, le=1)
    """Admit partial cells with at least this share of the planned documents; default: 1, none."""
    errors: ErrorRule | None = None
    """`wrong`, the default: a response that is an error scores 0. `exclude`: leave its document out."""
    rules: tuple[Rule, ...] = Field(min_length=1)

    def select(self, selection: RunSelection | None = None) -> RunSelection:
        """Return the selection of this policy; options that are given take precedence."""
        return (selection or RunSelection()).with_defaults(self.min_coverage, self.errors)


def load_policy(path: Path) -> Policy:
    """Read a policy file; baselines become absolute paths.

    Raises:
        ConfigError: a mistake in the file (with field, value, and the nearest known metric or key), or a
            policy of schema 1.
    """
    path = Path(path)
    value = read_yaml(path)
    _refuse_retired(value, path)
    for number, rule in enumerate(value.get("rules") or []):
        metric = rule.get("metric") if isinstance(rule, dict) else None
        if isinstance(metric, str) and metric not in METRICS:
            new = RETIRED.get(metric)
            hint = f"; it is now '{new}'" if new else nearest(metric, METRICS)
            raise ConfigError(f"{path}: 'rules.{number}.metric' = '{metric}': unknown metric{hint}")
    policy = parse(value, Policy, str(path))
    rules = tuple(
        rule.model_copy(update={"baseline": str((path.parent / rule.baseline).resolve())})
        if rule.baseline
        else rule
        for rule in policy.rules
    )
    return policy.model_copy(update={"rules": rules})


def _refuse_retired(value: dict[str, Any], path: Path) -> None:
    renames = ", ".join(f"'{old}' is now '{new}'" for old, new in RETIRED.items())
    if "lines" in value or value.get("schema", SCHEMA) == 1:
        raise ConfigError(f"{path}: a policy of schema 1; this evalsuite reads schema {SCHEMA}: {renames}")


def policy_from_options(min_recovery: float | None = None, max_gap: float | None = None) -> Policy:
    """Build the policy of `--min-recovery` (a fraction, under every protocol) and `--max-gap` (points).

    Raises:
        ConfigError: neither is given, or a value is NaN or a percentage instead of a fraction.
    """
    rules: list[dict[str, Any]] = []
    if min_recovery is not None:
        rules.append({"metric": "recovery", "min": min_recovery})
    if max_gap is not None:
        rules.append({"metric": "gap", "max": max_gap})
    if not rules:
        raise ConfigError("a gate needs --min-recovery, --max-gap or a policy")
    return parse({"rules": rules}, Policy, "--min-recovery/--max-gap")
