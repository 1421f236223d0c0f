"""The policy: what a checkpoint must keep, line by line."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from evalsuite.foundation import ConfigError, nearest
from evalsuite.foundation.strict import Strict, parse, read_yaml

METRICS = ("recovery", "centred_recovery", "score", "gap", "deficit", "regression")
AT_LEAST = ("recovery", "centred_recovery", "score")
"""Fractions with a `min`; the other metrics are points with a `max`."""


class Line(Strict):
    """One demand."""

    metric: Literal["recovery", "centred_recovery", "score", "gap", "deficit", "regression"]
    """`recovery`, `centred_recovery`: share of the teacher. `score`: a fraction. `gap`, `deficit`: points
    beside the teacher. `regression`: points lost beside the same checkpoint in a stored run."""
    min: float | None = None
    """For recovery, centred_recovery and score: the least fraction, 0.95 for 95 %."""
    max: float | None = None
    """For gap, deficit and regression: the most points."""
    name: str | None = None
    protocol: Literal["loglikelihood", "generation"] | None = None
    """None: under every protocol that the run asks, each a line of its own. A gap has none."""
    benchmark: str | None = None
    category: (
        Literal[
            "knowledge", "common_sense", "reasoning", "instruction_following", "recall", "language_modeling"
        ]
        | None
    ) = None
    context: int | None = Field(default=None, ge=1)
    """With a benchmark of needles: its stated length in tokens."""
    baseline: str | None = None
    """For regression: a stored run folder, relative to the policy's own folder."""
    baseline_checkpoint: str | None = None
    """Label there; default: the same label, or the only student."""
    checkpoints: tuple[str, ...] = ()
    """Labels; default: the policy's."""

    @model_validator(mode="after")
    def _is_consistent(self) -> "Line":
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
        if self.metric == "gap" and self.protocol is not None:
            raise ValueError("a gap is between the protocols: leave 'protocol' out")
        return self

    @property
    def threshold(self) -> float:
        """The `min` or the `max`."""
        value = self.min if self.metric in AT_LEAST else self.max
        assert value is not None  # the validator saw to it
        return value


class Policy(Strict):
    """What a gate demands."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    confidence: float = Field(default=0.95, gt=0.5, lt=1)
    """Of the intervals that decide; false alarms over all lines together stay below 1 − confidence."""
    inconclusive: Literal["stop", "tolerate"] = "stop"
    """`stop`: exit code 2 when documents are too few to decide a line; `tolerate`: pass, and say so."""
    checkpoints: tuple[str, ...] = ()
    """Labels of the checkpoints to judge; default: every student of the run."""
    lines: tuple[Line, ...] = Field(min_length=1)


def load_policy(path: Path) -> Policy:
    """Read a policy file; baselines become absolute paths.

    Raises:
        ConfigError: a mistake in the file: field, value, and the nearest known metric or key.
    """
    path = Path(path)
    value = read_yaml(path)
    for number, line in enumerate(value.get("lines") or []):
        metric = line.get("metric") if isinstance(line, dict) else None
        if isinstance(metric, str) and metric not in METRICS:
            hint = nearest(metric, METRICS)
            raise ConfigError(f"{path}: 'lines.{number}.metric' = '{metric}': unknown metric{hint}")
    policy = parse(value, Policy, str(path))
    lines = tuple(
        line.model_copy(update={"baseline": str((path.parent / line.baseline).resolve())})
        if line.baseline
        else line
        for line in policy.lines
    )
    return policy.model_copy(update={"lines": lines})


def policy_from_options(min_recovery: float | None = None, max_gap: float | None = None) -> Policy:
    """The policy of `--min-recovery` (a fraction, under every protocol asked) and `--max-gap` (points).

    Raises:
        ConfigError: neither given, a NaN, or a percentage where a fraction belongs.
    """
    lines: list[dict[str, Any]] = []
    if min_recovery is not None:
        lines.append({"metric": "recovery", "min": min_recovery})
    if max_gap is not None:
        lines.append({"metric": "gap", "max": max_gap})
    if not lines:
        raise ConfigError("a gate needs --min-recovery, --max-gap or a policy")
    return parse({"lines": lines}, Policy, "--min-recovery/--max-gap")
