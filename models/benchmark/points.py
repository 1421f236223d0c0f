"""What is measured: points of a sweep, the record of each, and `efficiency.jsonl` of a run folder."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from evalsuite.foundation import ConfigError, DataError, locked, read_jsonl, write_text
from evalsuite.foundation.hashing import canonical_json
from evalsuite.models.benchmark.timing import Spread

FILE = "efficiency.jsonl"
"""Measurements of a run folder, one line each, the latest of each key."""
SCHEMA = 2
"""Its schema; `evalsuite.reports.records.efficiency` reads it."""

Kind = Literal["request", "decode"]
Status = Literal["ok", "out_of_memory", "unsupported", "failed"]
Key = tuple[str, str, str, str, str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measurement to make.

    `request`: prefill `batch` prompts of `context` tokens and decode from there. `decode`: decode `batch`
    sequences together, each with a synthetic cache of `context` tokens.
    """

    kind: Kind
    context: int
    batch: int = 1
    repeats: int = 3
    """Timed prefills; a decode step is always repeated often."""

    def __post_init__(self) -> None:
        if min(self.context, self.batch, self.repeats) < 1:
            raise ConfigError(
                f"context {self.context}, batch {self.batch}, {self.repeats} repeats: each must be at least 1"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The record of one point, a line of `efficiency.jsonl`. Bytes per sequence unless stated otherwise."""

    label: str
    weights_id: str
    teacher: str | None
    """weights_id of the teacher; None for a teacher."""
    random_weights: bool
    engine: str
    """Name of the engine: models are compared in one engine."""
    versions: str
    """Packages that decide its speed."""
    device: str
    dtype: str
    parameters: int
    kind: Kind
    context: int
    batch: int
    status: Status
    detail: str = ""
    """Why a point that is not ok has no numbers; for one that is, what it depends on."""
    out_of_distribution: bool = False
    """Whether the context exceeds the model's positions: speed is unaffected, answers are not."""
    ttft_ms: Spread | None = None
    """Time to first token: prefill of all prompts and the choice of one token each."""
    step_ms: Spread | None = None
    """Time of one decode step at this position, in which every sequence gains a token."""
    cache_bytes: int | None = None
    """Measured size of keys, values and recurrent states after `context` tokens."""
    expected_cache_bytes: int | None = None
    """The same from the config."""
    peak_bytes: int | None = None
    """Peak memory allocated on the GPU, weights and all sequences included."""
    prefill_flops: float | None = None
    """FLOPs per prompt token, from the config."""
    decode_bytes: float | None = None
    """Bytes that a decode step must read per generated token: weights shared by the batch, and the cache."""
    joules: float | None = None
    """Energy per generated token, from NVML."""
    sm_clock_mhz: int | None = None
    other_processes: int | None = None
    """Other processes that computed on the GPU."""
    date: str = ""
    schema: int = SCHEMA

    @property
    def key(self) -> Key:
        """Identity of a measurement; a later one with the same key replaces it."""
        return (
            self.weights_id,
            self.engine,
            self.device,
            self.dtype,
            self.kind,
            self.context,
            self.batch,
        )

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Generated tokens of all sequences per second."""
        return None if self.step_ms is None else 1000 * self.batch / self.step_ms.median

    @property
    def prefill_tokens_per_second(self) -> float | None:
        """Prompt tokens of all sequences per second."""
        return None if self.ttft_ms is None else 1000 * self.batch * self.context / self.ttft_ms.median

    def to_row(self) -> dict[str, Any]:
        """The line of `efficiency.jsonl`."""
        return asdict(self)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Measurement":
        """Inverse of `to_row`."""
        spreads = {name: Spread(**row[name]) for name in ("ttft_ms", "step_ms") if row.get(name) is not None}
        return cls(**{**row, **spreads})


def read_measurements(run: Path) -> list[Measurement]:
    """The measurements of a run folder; empty without a file.

    Raises:
        DataError: a line of another schema.
    """
    path, found = run / FILE, []
    for number, row in enumerate(read_jsonl(path), 1):
        if row.get("schema") != SCHEMA:
            raise DataError(
                f"{path}, line {number}: schema {row.get('schema')!r}; this evalsuite writes {SCHEMA}: "
                "delete the file and repeat `evalsuite bench`"
            )
        try:
            found.append(Measurement.from_row(row))
        except TypeError as error:
            raise DataError(
                f"{path}, line {number}: {error}; delete the line and repeat `evalsuite bench`"
            ) from error
    return found


def save_measurement(run: Path, measured: Measurement) -> None:
    """Write a measurement to a run folder, replacing an earlier one with the same key.

    Raises:
        DataError: the file has lines of another schema.
        RunFolderError: the file cannot be written.
    """
    run.mkdir(parents=True, exist_ok=True)
    path = run / FILE
    with locked(path.with_name(f".{FILE}.lock")):
        kept = [each for each in read_measurements(run) if each.key != measured.key]
        lines = [canonical_json(each.to_row()) for each in (*kept, measured)]
        write_text(path, "".join(f"{line}\n" for line in lines))
