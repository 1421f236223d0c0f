"""The policy of a gate: its rules, read strictly from YAML or from command-line options."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from evalsuite.foundation import ConfigError, content_hash, nearest
from evalsuite.foundation.strict import Strict, parse
from evalsuite.foundation.strict_yaml import read_yaml
from evalsuite.reports.measure import problems
from evalsuite.reports.measures import rule_metric, rule_metrics
from evalsuite.reports.records.run_selection import ErrorRule, RunSelection, UnreadRule
from evalsuite.reports.rules.metric import RuleMetric
from evalsuite.reports.rules.rule import Over, Rule


class PolicyRule(Rule):
    """One requirement of a policy, whose metric is known."""

    @model_validator(mode="after")
    def _is_consistent(self) -> "PolicyRule":
        if rule_metric(self.metric) is None:
            raise ValueError(f"'metric' = '{self.metric}': {_unknown(self.metric)}")
        kind = self.kind
        wanted, other = (kind.bound, "max" if kind.bound == "min" else "min")
        threshold = getattr(self, wanted)
        if self.within is not None:
            self._has_two_sides(kind)
        elif threshold is None or getattr(self, other) is not None:
            also = "" if kind.unchanged is None else " (or 'within', in both directions)"
            raise ValueError(f"{self.metric} takes '{wanted}', and only that{also}")
        elif why := kind.check(threshold):
            raise ValueError(f"'{wanted}' = {threshold:g} must be {why}")
        if self.benchmark is not None and self.category is not None:
            raise ValueError("give either 'benchmark' or 'category'")
        if self.scope == "informative" and (self.benchmark is not None or self.category is not None):
            raise ValueError("'scope' selects among all benchmarks: leave 'benchmark' and 'category' out")
        if self.scope == "informative" and not kind.has_scope:
            able = [name for name, each in rule_metrics().items() if each.has_scope]
            raise ValueError(f"'scope: {self.scope}' belongs to {', '.join(able)}")
        if kind.needs_context:
            if self.context is None or self.benchmark is not None:
                raise ValueError(f"{self.metric} needs a context and no benchmark, as in {self.metric}@32k")
        elif self.context is not None and self.benchmark is None:
            raise ValueError("'context' needs a 'benchmark'")
        if (self.baseline is not None) != kind.needs_baseline:
            needing = [name for name, each in rule_metrics().items() if each.needs_baseline]
            raise ValueError(f"'baseline' belongs to {', '.join(needing)}, and {', '.join(needing)} needs it")
        if self.over == "runs" and not kind.over_runs:
            able = [name for name, each in rule_metrics().items() if each.over_runs]
            raise ValueError(f"'over: runs' belongs to {', '.join(able)}")
        if kind.protocols == "both" and self.protocol is not None:
            raise ValueError(f"a {self.metric} is between the protocols: leave 'protocol' out")
        if kind.protocols == "none" and (
            self.protocol or self.category or (self.context and not kind.needs_context)
        ):
            raise ValueError(f"{self.metric} has no protocol, category or context: leave them out")
        return self

    def _has_two_sides(self, kind: RuleMetric) -> None:
        """Raise ValueError unless `within` is a margin of equivalence."""
        assert self.within is not None
        if kind.unchanged is None:
            able = [name for name, each in rule_metrics().items() if each.unchanged is not None]
            raise ValueError(f"'within' belongs to {', '.join(able)}")
        if self.min is not None or self.max is not None:
            raise ValueError("'within' bounds both directions: leave 'min' and 'max' out")
        most = 1.0 if kind.unit == "fraction" else 100.0
        if not 0 < self.within < most:
            what = "as a fraction: 0.01 means 1 %" if kind.unit == "fraction" else "in points"
            raise ValueError(
                f"'within' = {self.within:g} must be above 0 and below {most:g}, {what}; no number of "
                "documents proves that nothing at all changed: state the difference that does not matter"
            )

    @property
    def kind(self) -> RuleMetric:
        """What the rule measures."""
        kind = rule_metric(self.metric)
        assert kind is not None
        return kind

    @property
    def is_informative(self) -> bool:
        """Whether only informative benchmarks count."""
        if self.scope is None and self.benchmark is None and self.category is None:
            return self.kind.scope == "informative"
        return self.scope == "informative"

    @property
    def threshold(self) -> float:
        """The `min` or the `max`; of `within`, the end that a loss crosses."""
        if self.within is not None:
            return self._unchanged + (-self.within if self.kind.bound == "min" else self.within)
        value = self.min if self.kind.bound == "min" else self.max
        assert value is not None  # guaranteed by the validator
        return value

    @property
    def gain(self) -> float | None:
        """Of `within`, the end that a gain crosses; None for a rule that allows every gain."""
        return None if self.within is None else 2 * self._unchanged - self.threshold

    @property
    def _unchanged(self) -> float:
        assert self.kind.unchanged is not None  # guaranteed by the validator
        return self.kind.unchanged

    def title(self, protocol: str | None) -> str:
        """Its name under a protocol, such as ``drop of gsm8k under generation``."""
        if self.name:
            return self.name if protocol is None or self.protocol else f"{self.name}, {protocol}"
        what = self.benchmark or self.category or "average"
        if self.is_informative:
            what = "informative benchmarks"
        parts = [self.metric.replace("_", " ") + ("" if self.kind.needs_context else f" of {what}")]
        if self.context:
            parts.append(f"at {self.context:,} tokens")
        if protocol:
            parts.append(f"under {protocol}")
        return " ".join(parts)


class Policy(Strict):
    """The rules of a gate."""

    schema_: Literal[2] = Field(default=2, alias="schema")
    name: str = ""
    """What pages call it; default: the name of the file."""
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Level of the deciding intervals; the rate of false alarms over all rules stays below 1 − confidence."""
    inconclusive: Literal["stop", "tolerate"] = "stop"
    """`stop`: exit code 2 if documents are too few to decide a rule; `tolerate`: pass and print the rule."""
    checkpoints: tuple[str, ...] = ()
    """Names (labels, weights_ids, paths) of what to evaluate; default: every student of the run."""
    benchmarks: tuple[str, ...] = ()
    """Names of the only benchmarks to gate, of an unfinished run, say; the verdict names those that it leaves
    out. Default: all of the plan."""
    min_coverage: float | None = Field(default=None, gt=0, le=1)
    """Admit partial cells with at least this share of the planned documents; default: 1, none."""
    errors: ErrorRule | None = None
    """`wrong`, the default: a response that is an error scores 0. `exclude`: leave its document out."""
    max_excluded: float = Field(default=0.02, ge=0, le=1)
    """Largest share of the documents of a rule that `errors: exclude` may leave out; beyond it, the rule is
    not measured."""
    over: Over | None = None
    """What rules that can be decided over training runs are decided on: see `rules`. Default: on the training
    runs where the spread between them is known, from seeds in the runs or `run_spread`; else on documents."""
    run_spread: float | None = Field(default=None, gt=0, le=100)
    """Standard deviation of the score between training runs of one recipe, in points; default: that between
    the seeds in the runs."""
    unread_contexts: UnreadRule = "ignore"
    """Contexts beyond what a checkpoint reads: `ignore` leaves them out of its rules; `missing` counts them
    as not measured."""
    rules: tuple[PolicyRule, ...] = Field(min_length=1)
    """At least one rule."""

    @field_validator("confidence", "min_coverage", "max_excluded", "run_spread", mode="before")
    @classmethod
    def _is_no_truth_value(cls, value: Any) -> Any:
        return Rule._is_no_truth_value(value)

    @model_validator(mode="after")
    def _has_the_benchmarks_of_its_rules(self) -> "Policy":
        for rule in self.rules:
            if self.benchmarks and rule.benchmark is not None and rule.benchmark not in self.benchmarks:
                raise ValueError(
                    f"a rule is about '{rule.benchmark}', which 'benchmarks' leaves out"
                    f"{nearest(rule.benchmark, self.benchmarks)}"
                )
        return self

    @property
    def identity(self) -> str:
        """Hash of all that decides; the name does not."""
        return content_hash(self.model_dump(mode="json", exclude={"name"}))

    def with_options(self, **given: Any) -> "Policy":
        """Return the policy with options of a call; those that are None or empty change nothing.

        Raises:
            ConfigError: an option out of range.
        """
        options = {name: value for name, value in given.items() if value not in (None, ())}
        if not options:
            return self
        where = "/".join(map(_flag, options))
        return parse({**self.model_dump(by_alias=True), **options}, Policy, where)

    def select(self, selection: RunSelection | None = None) -> RunSelection:
        """Return the selection of this policy; options that are given take precedence."""
        return (selection or RunSelection()).with_defaults(
            self.min_coverage, self.errors, self.unread_contexts
        )


def load_policy(path: Path) -> Policy:
    """Read a policy file; baselines become absolute paths.

    Raises:
        ConfigError: a mistake in the file (with field, value, and the nearest known metric or key).
    """
    path = Path(path)
    value = read_yaml(path)
    for number, rule in enumerate(value.get("rules") or []):
        metric = rule.get("metric") if isinstance(rule, dict) else None
        if isinstance(metric, str) and rule_metric(metric) is None:
            raise ConfigError(f"{path}: 'rules.{number}.metric' = '{metric}': {_unknown(metric)}")
    policy = parse(value, Policy, str(path))
    rules = tuple(
        rule.model_copy(update={"baseline": str((path.parent / rule.baseline).resolve())})
        if rule.baseline
        else rule
        for rule in policy.rules
    )
    return policy.model_copy(update={"rules": rules, "name": policy.name or path.name})


def options() -> dict[str, tuple[str, RuleMetric]]:
    """Option of the command line → name and metric of its rule, such as `min_recovery` → `recovery`."""
    return {
        f"{metric.bound}_{name}": (name, metric)
        for name, metric in rule_metrics().items()
        if metric.has_option
    }


def policy_from_options(**bounds: float | None) -> Policy:
    """Build the policy of the command line's options, such as `min_recovery=0.9` and `max_gap=5`.

    Args:
        bounds: thresholds by option, see `options`; None for options that are not given. Rules apply
            under every protocol.

    Raises:
        ConfigError: none is given, an unknown one, or a value that is NaN or a percentage instead of a
            fraction.
    """
    known = options()
    rules = []
    for option, threshold in bounds.items():
        if option not in known:
            raise ConfigError(f"unknown option '{option}' of a gate{nearest(option, known)}")
        if threshold is not None:
            name, metric = known[option]
            if why := metric.check(threshold):
                raise ConfigError(f"{_flag(option)} {threshold:g}: must be {why}")
            rules.append({"metric": name, metric.bound: threshold})
    flags = [_flag(option) for option in known]
    if not rules:
        raise ConfigError(f"a gate needs {', '.join(flags)} or a policy")
    return parse({"rules": rules}, Policy, "/".join(flags))


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _unknown(name: str) -> str:
    """Message about a name that no metric has, with the measures that cannot be used."""
    return "; ".join([f"unknown metric{nearest(name, rule_metrics())}", *problems()])
