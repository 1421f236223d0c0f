"""`efficiency.jsonl` of a run folder: speed, memory and energy by context, one line per measurement."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from evalsuite.foundation import DataError, read_jsonl
from evalsuite.foundation.strict import Strict, parse
from evalsuite.reports.records.names import labels_of_weights

FILE = "efficiency.jsonl"


class Spread(Strict):
    """Median of repeated measurements with the smallest and the largest one."""

    median: float = Field(gt=0)
    low: float = Field(ge=0)
    high: float = Field(gt=0)
    repeats: int = Field(ge=1)


class EfficiencyRow(Strict):
    """One line of `efficiency.jsonl`: a model in an engine on a device, at one context and batch size."""

    schema_: Literal[2] = Field(alias="schema")
    label: str
    weights_id: str
    teacher: str | None = None
    """weights_id of the teacher; None for a teacher."""
    random_weights: bool = False
    engine: str
    versions: str = ""
    device: str
    dtype: str
    parameters: int = Field(ge=0)
    kind: Literal["request", "decode"]
    """`request`: a real prefill and decoding from there; `decode`: a batch with synthetic caches."""
    context: int = Field(ge=1)
    batch: int = Field(ge=1)
    status: Literal["ok", "out_of_memory", "unsupported", "failed"]
    detail: str = ""
    """Why there are no numbers, or what they depend on."""
    out_of_distribution: bool = False
    """Whether the context exceeds the model's positions."""
    ttft_ms: Spread | None = None
    """Time to first token."""
    step_ms: Spread | None = None
    """Time of one decode step at this position."""
    cache_bytes: int | None = None
    """Measured keys, values and recurrent states of one sequence."""
    expected_cache_bytes: int | None = None
    """The same from the config."""
    peak_bytes: int | None = None
    prefill_flops: float | None = None
    """Per prompt token."""
    decode_bytes: float | None = None
    """Bytes that a step must read per generated token."""
    joules: float | None = None
    """Per generated token."""
    sm_clock_mhz: int | None = None
    other_processes: int | None = Field(default=None, ge=0)
    """Other processes that computed on the GPU."""
    date: str = ""

    @model_validator(mode="before")
    @classmethod
    def _refuse_schema_1(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("schema") == 1:
            raise ValueError("schema 1 is not supported; delete the file and repeat `evalsuite bench`")
        return value

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Generated tokens of all sequences per second."""
        return None if self.step_ms is None else 1000 * self.batch / self.step_ms.median

    @property
    def prefill_tokens_per_second(self) -> float | None:
        """Prompt tokens of all sequences per second."""
        return None if self.ttft_ms is None else 1000 * self.batch * self.context / self.ttft_ms.median


def read_efficiency(runs: Sequence[Path]) -> list[EfficiencyRow]:
    """Read the efficiency measurements of all runs; the label of two models gets their weights as a suffix.

    Raises:
        DataError, ConfigError: a line that is no measurement.
    """
    found = []
    for run in runs:
        path = Path(run) / FILE
        for number, row in enumerate(read_jsonl(path), 1):
            source = f"{path}, line {number}"
            if not isinstance(row, dict):
                raise DataError(f"{source}: expected a JSON object")
            found.append(parse(row, EfficiencyRow, source))
    labels = labels_of_weights((row.weights_id, row.label) for row in found)
    return [row.model_copy(update={"label": labels[row.weights_id]}) for row in found]
