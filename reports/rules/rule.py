"""One rule of a policy: the cells that it selects, and what it is decided on."""

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from evalsuite.foundation.strict import Strict
from evalsuite.foundation.taxonomy import Category, Protocol

_TEXT = re.compile(
    r"(?P<metric>[a-z_]+)(?:@(?P<context>[0-9]+)(?P<thousands>k?))?(?P<sign>\s*>=|\s*<=|\s+within\s)\s*"
    r"(?P<value>-?[0-9]+(?:\.[0-9]+)?)"
)
"""A rule as text: metric, context if it needs one, sign and threshold."""
_KEYS = {">=": "min", "<=": "max", "within": "within"}


Over = Literal["documents", "runs"]
"""What a verdict holds for: this checkpoint on other documents, or its recipe trained again as well."""


class Rule(Strict):
    """One requirement of a policy."""

    metric: str
    """One of the metrics above."""
    min: float | None = None
    """Lower bound, a fraction: 0.95 for 95 %."""
    max: float | None = None
    """Upper bound, in points (for `kl` in nats)."""
    within: float | None = None
    """Instead of a bound, for what must not change in either direction: the largest difference from an
    unchanged checkpoint that does not matter, in points, or a fraction of a recovery."""
    name: str | None = None
    """Text that identifies the rule; default: made from the other keys."""
    protocol: Protocol | None = None
    """None: every protocol of the run, one result each. A gap takes none."""
    benchmark: str | None = None
    """Only this benchmark."""
    category: Category | None = None
    """Only benchmarks of this category."""
    scope: Literal["all", "informative"] | None = None
    """`informative`: only benchmarks on which the teacher is above chance and, under generation, names an
    answer, as in the headline of the page; the default of recovery and drop. `all`: every benchmark."""
    context: int | None = Field(default=None, ge=1)
    """With a benchmark that has contexts: the stated length in tokens."""
    baseline: str | None = None
    """For regression: a stored run folder, relative to the folder of the policy."""
    baseline_checkpoint: str | None = None
    """Its name in the baseline; default: the checkpoint of the same weights, else of the same label."""
    over: Over | None = None
    """`documents`: decide on the checkpoint itself. `runs`: on its recipe, the mean of all training runs that
    differ only by seed, with the spread between them. Default: that of the policy."""
    checkpoints: tuple[str, ...] = ()
    """Names (labels, weights_ids, paths); default: those of the policy."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """Read a rule that is written as text: `decode_ratio@32k >= 1.5`."""
        if not isinstance(value, str):
            return value
        found = _TEXT.fullmatch(value.strip())
        if found is None:
            raise ValueError(
                f"'{value}' is no rule, such as 'recovery >= 0.9', 'drop within 1' or 'ttft_ms@8k <= 200'"
            )
        rule: dict[str, Any] = {
            "metric": found["metric"],
            _KEYS[found["sign"].strip()]: float(found["value"]),
        }
        if found["context"]:
            rule["context"] = int(found["context"]) * (1024 if found["thousands"] else 1)
        return rule

    @field_validator("min", "max", "within", "context", mode="before")
    @classmethod
    def _is_no_truth_value(cls, value: Any) -> Any:
        """`min: yes` is true in YAML, and true would be 1."""
        if isinstance(value, bool):
            raise ValueError("expected a number")
        return value

    @property
    def is_informative(self) -> bool:
        """Whether only informative benchmarks count."""
        return self.scope == "informative"
