"""`efficiency.jsonl` of a run folder: speed, memory and energy by context, one line per measurement.

`evalsuite.models.benchmark` writes it, on a host that may have no pydantic; the reports read it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

from evalsuite.foundation.errors import DataError
from evalsuite.foundation.files import read_jsonl
from evalsuite.foundation.typed import from_json

FILE = "efficiency.jsonl"
"""Measurements of a run folder, one line each, the latest of each key."""
SCHEMA: Final = 2

Kind = Literal["request", "decode"]
Status = Literal["ok", "out_of_memory", "unsupported", "failed"]
Key = tuple[str, str, str, str, str, int, int]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median of repeated measurements with the smallest and the largest one."""

    median: float
    low: float
    high: float
    repeats: int

    def __post_init__(self) -> None:
        """Raise ValueError for what no repeats give."""
        if not (self.median > 0 and self.low >= 0 and self.high > 0 and self.repeats >= 1):
            raise ValueError(
                f"median {self.median:g} ({self.low:g} to {self.high:g}) of {self.repeats} repeats: expected "
                "positive numbers of at least one repeat"
            )

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarize at least one value."""
        return cls(median(values), min(values), max(values), len(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficiencyRow:
    """One line of `efficiency.jsonl`: a model in an engine on a device, at one context and batch size.

    Bytes are per sequence unless stated otherwise.
    """

    schema: Literal[2] = SCHEMA
    label: str
    weights_id: str
    teacher: str | None = None
    """weights_id of the teacher; None for a teacher."""
    random_weights: bool = False
    engine: str
    """Models are compared in one engine."""
    versions: str = ""
    """Packages that decide its speed."""
    device: str
    dtype: str
    parameters: int
    kind: Kind
    """`request`: a real prefill and decoding from there; `decode`: a batch with synthetic caches."""
    context: int
    batch: int
    status: Status
    detail: str = ""
    """Why there are no numbers, or what they depend on."""
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

    def __post_init__(self) -> None:
        """Raise ValueError for a count that is too small."""
        for name, least in (("parameters", 0), ("context", 1), ("batch", 1), ("other_processes", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"'{name}' = {value}: must be at least {least}")

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


def read_measurements(run: Path) -> list[EfficiencyRow]:
    """The measurements of a run folder; empty without a file.

    Raises:
        DataError: a line that is no measurement, or of another schema.
    """
    path = Path(run) / FILE
    return [_read(row, f"{path}, line {number}") for number, row in enumerate(read_jsonl(path), 1)]


def _read(row: Any, source: str) -> EfficiencyRow:
    if isinstance(row, dict) and row.get("schema") != SCHEMA:
        raise DataError(
            f"{source}: schema {row.get('schema')!r}, this evalsuite reads {SCHEMA}; delete the file and "
            "repeat `evalsuite bench`"
        )
    return from_json(row, EfficiencyRow, source)
