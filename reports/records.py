"""The record: one line of JSON for what one checkpoint did on one document under one protocol and seed.

Records are append-only journals, one file per benchmark and protocol. `read_records` reads only what the
reports need of them (no responses, no texts), fast, and refuses what must never be averaged: another
schema, a repeated key, a number that is not one.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalsuite.foundation import DataError, append_jsonl

SCHEMA = 1
PROTOCOLS = ("loglikelihood", "generation")
OUTCOMES = ("ok", "extraction_failed", "truncated", "looped", "error")
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
class Record:
    """One answer, judged.

    `values` maps each metric to its number: a fraction between 0 and 1 where higher is better; for a
    perplexity the document's negative log-likelihood in nats, beside a count of its units (words, bytes;
    the plan names it). An answer that could not be had has the outcome `error` and may have no values.
    `sampling` is "" under log-likelihood. `context` is the stated length of a needle prompt, else None.
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
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        """Refuse what could not be read back. Raises DataError naming the field and its value."""
        if self.schema != SCHEMA:
            raise DataError(f"record: 'schema' = {self.schema!r}; this evalsuite reads and writes {SCHEMA}")
        for name in ("weights_id", "fingerprint", "doc_id", "prompt_hash", "checkpoint"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise DataError(f"record: '{name}' = {getattr(self, name)!r}; expected a text")
        if not isinstance(self.benchmark, str) or not _BENCHMARK_NAME.fullmatch(self.benchmark):
            raise DataError(f"record: 'benchmark' = {self.benchmark!r}; expected letters, digits and _.+-")
        if self.protocol not in PROTOCOLS:
            raise DataError(f"record: 'protocol' = {self.protocol!r}; expected one of {', '.join(PROTOCOLS)}")
        if self.outcome not in OUTCOMES:
            raise DataError(f"record: 'outcome' = {self.outcome!r}; expected one of {', '.join(OUTCOMES)}")
        if not isinstance(self.sampling, str):
            raise DataError(f"record: 'sampling' = {self.sampling!r}; expected a text ('' for none)")
        if type(self.seed) is not int or not (self.context is None or type(self.context) is int):
            raise DataError(f"record: seed {self.seed!r} and context {self.context!r} must be whole numbers")
        for name, value in (*self.values.items(), ("chance", self.chance)):
            if name == "chance" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise DataError(f"record {self.doc_id}: '{name}' = {value!r}; expected a finite number")
        if not self.values and self.outcome != "error":
            raise DataError(f"record {self.doc_id}: no 'values', though the outcome is '{self.outcome}'")

    @property
    def key(self) -> tuple[str | int | None, ...]:
        """What makes this record one of a kind, in the order of `KEY`."""
        return tuple(getattr(self, name) for name in KEY)

    def row(self) -> dict[str, Any]:
        """The JSON object of this record; whole numbers among `values` become floats."""
        row: dict[str, Any] = {name: getattr(self, name) for name in KEY}
        row["checkpoint"] = self.checkpoint
        row["values"] = {name: float(value) for name, value in self.values.items()}
        row["chance"] = None if self.chance is None else float(self.chance)
        row["outcome"] = self.outcome
        row["detail"] = dict(self.detail)
        row["schema"] = self.schema
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Record":
        """Build a record from its JSON object. Raises DataError for a missing or unknown key."""
        known = set(cls.__dataclass_fields__)
        missing, extra = sorted(known - set(row)), sorted(set(row) - known)
        if missing or extra:
            parts = [f"lacks {', '.join(missing)}"] * bool(missing)
            parts += [f"has unknown keys {', '.join(extra)}"] * bool(extra)
            raise DataError(f"record {' and '.join(parts)}")
        if not isinstance(row["values"], Mapping) or not isinstance(row["detail"], Mapping):
            raise DataError("record: 'values' and 'detail' must be JSON objects")
        return cls(**row)


def records_path(run: Path, benchmark: str, protocol: str) -> Path:
    """`<run>/records/<benchmark>.<protocol>.jsonl`, where one benchmark under one protocol is kept."""
    return Path(run) / "records" / f"{benchmark}.{protocol}.jsonl"


def append_records(run: Path, records: Iterable[Record]) -> None:
    """Append `records` to the journals of `run`, each to its own, flushed to disk before returning.

    Raises:
        RunFolderError: the folder cannot be written or the disk is full; no partial row remains.
    """
    journals: dict[Path, list[dict[str, Any]]] = {}
    for record in records:
        path = records_path(run, record.benchmark, record.protocol)
        journals.setdefault(path, []).append(record.row())
    for path, rows in journals.items():
        append_jsonl(path, rows)
