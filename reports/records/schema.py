"""The score row: one line of JSON with the score of one checkpoint on one document, protocol and seed.

Score rows are append-only JSONL files, one per benchmark and protocol. Reading them is `reading`'s job.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalsuite.foundation import DataError, append_jsonl
from evalsuite.foundation.taxonomy import OUTCOMES, PROTOCOLS

SCHEMA = 2
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreRow:
    """The score of one response.

    `values` maps each metric to its number: a fraction between 0 and 1 where higher is better; for a
    perplexity the document's negative log-likelihood in nats, together with a count of its units (words,
    bytes; named by the plan). A response that could not be obtained has the outcome `error` and may have no
    values. `sampling` is "" under log-likelihood. `context` is the stated length of a needle prompt or None.
    `cluster` names the documents that are resampled together; None, or absent, for independent documents.
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
    detail: Mapping[str, Any] = field(default_factory=dict)
    cluster: str | None = None
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        """Validate the row. Raises DataError naming the field and its value."""
        if self.schema != SCHEMA:
            raise DataError(
                f"score row: 'schema' = {self.schema!r}; this evalsuite reads and writes {SCHEMA}: repeat "
                "the evaluation into a new run folder"
            )
        for name in ("weights_id", "fingerprint", "doc_id", "prompt_hash", "checkpoint"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise DataError(f"score row: '{name}' = {getattr(self, name)!r}; expected a non-empty string")
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
        if not (self.cluster is None or (isinstance(self.cluster, str) and self.cluster)):
            raise DataError(f"score row {self.doc_id}: 'cluster' = {self.cluster!r}; expected a name or null")
        for name, value in (*self.values.items(), ("chance", self.chance)):
            if name == "chance" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise DataError(f"score row {self.doc_id}: '{name}' = {value!r}; expected a finite number")
        if not self.values and self.outcome != "error":
            raise DataError(f"score row {self.doc_id}: no 'values', though the outcome is '{self.outcome}'")

    @property
    def key(self) -> tuple[str | int | None, ...]:
        """The fields that identify this row, in the order of `KEY`."""
        return tuple(getattr(self, name) for name in KEY)

    def row(self) -> dict[str, Any]:
        """Convert to the JSON object; integers among `values` become floats."""
        row: dict[str, Any] = {name: getattr(self, name) for name in KEY}
        row["checkpoint"] = self.checkpoint
        row["values"] = {name: float(value) for name, value in self.values.items()}
        row["chance"] = None if self.chance is None else float(self.chance)
        row["outcome"] = self.outcome
        row["detail"] = dict(self.detail)
        if self.cluster is not None:
            row["cluster"] = self.cluster
        row["schema"] = self.schema
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "ScoreRow":
        """Build a score row from its JSON object. Raises DataError for a missing or unknown key."""
        known = set(cls.__dataclass_fields__)
        missing, extra = sorted(known - {"cluster"} - set(row)), sorted(set(row) - known)
        if missing or extra:
            parts = [f"lacks {', '.join(missing)}"] * bool(missing)
            parts += [f"has unknown keys {', '.join(extra)}"] * bool(extra)
            raise DataError(f"score row {' and '.join(parts)}")
        if not isinstance(row["values"], Mapping) or not isinstance(row["detail"], Mapping):
            raise DataError("score row: 'values' and 'detail' must be JSON objects")
        return cls(**row)


def scores_path(run: Path, benchmark: str, protocol: str) -> Path:
    """Path of the score rows of one benchmark and protocol: `<run>/scores/<benchmark>.<protocol>.jsonl`."""
    return Path(run) / "scores" / f"{benchmark}.{protocol}.jsonl"


def append_score_rows(run: Path, rows: Iterable[ScoreRow]) -> None:
    """Append score rows to the journals of `run`, flushed to disk before returning.

    Raises:
        RunFolderError: the folder cannot be written or the disk is full; no partial row remains.
    """
    journals: dict[Path, list[dict[str, Any]]] = {}
    for row in rows:
        path = scores_path(run, row.benchmark, row.protocol)
        journals.setdefault(path, []).append(row.row())
    for path, group in journals.items():
        append_jsonl(path, group)
