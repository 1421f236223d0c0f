"""The score row: the score of one checkpoint on one document, under one protocol and seed."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from evalsuite.foundation import DataError
from evalsuite.foundation.taxonomy import OUTCOMES, PROTOCOLS

SCHEMA = 3
KEY = (
    "weights_id",
    "fingerprint",
    "benchmark",
    "protocol",
    "seed",
    "context",
    "doc_id",
    "prompt_hash",
    "sampling",
)
_BENCHMARK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
_FINGERPRINT = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreRow:
    """The score of the responses to one document.

    `values` maps each metric to its number: a fraction between 0 and 1 where higher is better; for a
    perplexity the document's negative log-likelihood in nats, together with a count of its units (words,
    bytes; named by the plan). `choices` maps each metric to the index of the choice that it picks; a metric
    that picks none, or whose choice is unknown, is absent. A response that is missing, failed or could not be
    scored has the outcome `error`, the reason as `error`, and may have no values. `sampling` is "" under
    log-likelihood. `context` is the stated length of a needle prompt or None. `cluster` names the documents
    that are resampled together; None for independent documents. `out_of_distribution` marks a text that is
    longer than the positions that the checkpoint's config states, `closed_by_force` a response whose thought
    exceeded its budget.
    """

    weights_id: str
    fingerprint: str
    benchmark: str
    protocol: str
    seed: int
    context: int | None
    doc_id: str
    prompt_hash: str
    sampling: str
    checkpoint: str
    values: Mapping[str, float]
    chance: float | None
    outcome: str
    error: str | None = None
    cluster: str | None = None
    choices: Mapping[str, int] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)
    out_of_distribution: bool = False
    closed_by_force: bool = False

    def __post_init__(self) -> None:
        """Validate the row. Raises DataError naming the field and its value."""
        for name in ("weights_id", "fingerprint", "doc_id", "prompt_hash", "checkpoint"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise DataError(f"score row: '{name}' = {getattr(self, name)!r}; expected a non-empty string")
        if not _FINGERPRINT.fullmatch(self.fingerprint):
            raise DataError(
                f"score row: 'fingerprint' = {self.fingerprint!r}; expected letters, digits, _ and -"
            )
        if not isinstance(self.benchmark, str) or not _BENCHMARK_NAME.fullmatch(self.benchmark):
            raise DataError(f"score row: 'benchmark' = {self.benchmark!r}; expected letters, digits and _.+-")
        if self.protocol not in PROTOCOLS:
            raise DataError(
                f"score row: 'protocol' = {self.protocol!r}; expected one of {', '.join(PROTOCOLS)}"
            )
        if self.outcome not in OUTCOMES:
            raise DataError(f"score row: 'outcome' = {self.outcome!r}; expected one of {', '.join(OUTCOMES)}")
        if not isinstance(self.sampling, str):
            raise DataError(f"score row: 'sampling' = {self.sampling!r}; expected a string ('' for none)")
        if type(self.seed) is not int or not (self.context is None or type(self.context) is int):
            raise DataError(f"score row: seed {self.seed!r} and context {self.context!r} must be integers")
        for name, value in (*self.values.items(), ("chance", self.chance)):
            if name == "chance" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise DataError(f"score row {self.doc_id}: '{name}' = {value!r}; expected a finite number")
        if self.chance is not None and not 0 <= self.chance <= 1:
            raise DataError(
                f"score row {self.doc_id}: 'chance' = {self.chance!r}; expected a fraction, 0 to 1"
            )
        for name, choice in self.choices.items():
            if name not in self.values or type(choice) is not int or choice < 0:
                raise DataError(
                    f"score row {self.doc_id}: choice {choice!r} of '{name}'; expected the index of a "
                    "choice, for one of the metrics"
                )
        if not (self.cluster is None or (isinstance(self.cluster, str) and self.cluster)):
            raise DataError(f"score row {self.doc_id}: 'cluster' = {self.cluster!r}; expected a name or null")
        if not self.values and self.outcome != "error":
            raise DataError(f"score row {self.doc_id}: no 'values', though the outcome is '{self.outcome}'")
        if (self.error is not None) != (self.outcome == "error"):
            raise DataError(
                f"score row {self.doc_id}: 'error' = {self.error!r}, though the outcome is '{self.outcome}'"
            )

    @property
    def key(self) -> tuple[str | int | None, ...]:
        """The fields that identify this row, in the order of `KEY`."""
        return tuple(getattr(self, name) for name in KEY)

    def row(self) -> dict[str, Any]:
        """Convert to a mapping of its fields."""
        return {name: getattr(self, name) for name in ROW_FIELDS}


ROW_FIELDS = tuple(ScoreRow.__dataclass_fields__)
"""The names of the fields of a score row."""
