"""What was found of students in vLLM, what counts as agreement, and the table of it."""

import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch

from evalsuite.foundation import read_jsonl
from evalsuite.models.vllm_plugin.examples import LONGEST, WRITTEN

NEAR = 1e-3
"""Two log-probabilities that are closer than this may change places."""
SLACK = 2.0
"""In a shorter precision vLLM may lie this many times as far from float32 as the in-process engine does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one student gave in one regime."""

    student: str
    regime: str
    dtype: str
    prompts: int
    equal: int
    gaps: tuple[float, ...]
    """Log-probability between the two likeliest tokens at each first divergence."""
    questions: int
    deviation: float
    """Largest difference of a continuation's log-likelihood, nats."""
    written: int
    distinct: int
    """How many different tokens were written: a model that repeats one proves little."""
    cached: int
    """Prompt tokens that came out of vLLM's prefix cache."""
    versions: str
    rounding: "Rounding | None" = None
    """What the dtype alone changes, if it is not float32."""
    measured: str = ""
    """When, to the minute in UTC; empty in rows that are older than this field."""

    @property
    def holds(self) -> bool:
        """In float32: 99 in 100 answers equal, every divergence a near-tie, log-likelihoods as close.

        In a shorter precision, where `Rounding` says what is rounding: vLLM's log-likelihoods are as close to
        float32's as those in process but for `SLACK`; no answer parts where the likeliest tokens are further
        apart than that; and there are as many places where answers part, but for three standard deviations
        of the difference between two counts.
        """
        if self.rounding is not None:
            near = SLACK * self.rounding.our_deviation
            ours, theirs = self.rounding.our_places, self.rounding.vllm_places
            if ours is None or theirs is None:  # Rows that were found before places were counted.
                ours, theirs = (self.prompts - n for n in (self.rounding.our_equal, self.rounding.vllm_equal))
            as_many = theirs - ours <= 3 * math.sqrt(theirs + ours)
            close = self.rounding.vllm_deviation <= near and all(gap <= near for gap in self.gaps)
            return as_many and close
        near = all(gap < NEAR for gap in self.gaps) and self.deviation < NEAR
        return near and self.equal >= 0.99 * self.prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """How far both engines in a shorter precision are from the in-process engine in float32 on the CPU.

    Args:
        our_equal, vllm_equal: greedy answers that are float32's, of the in-process engine and of vLLM.
        our_places, vllm_places: where the others part from it, a place being a pair of tokens. A small model
            comes to one and the same near-tie after many a prompt, and then parts there after all of them.
        our_deviation, vllm_deviation: largest difference of a continuation's log-likelihood, nats.
    """

    our_equal: int
    our_deviation: float
    vllm_equal: int
    vllm_deviation: float
    our_places: int | None = None
    vllm_places: int | None = None


def read(path: Path) -> list[Row]:
    """The rows of an earlier run."""
    rows = []
    for row in read_jsonl(path):
        rounding = row.get("rounding")
        given = {**row, "gaps": tuple(row["gaps"]), "rounding": rounding and Rounding(**rounding)}
        rows.append(Row(**given))
    return rows


def table(rows: Sequence[Row], regimes: Mapping[str, Any]) -> str:
    """The rows as a page; `regimes` are arguments of vLLM by name."""
    served = "; ".join(f"{name} {json.dumps(given)}" for name, given in regimes.items())
    lines = [
        "# Students in vLLM against the in-process engine",
        "",
        f"{_processor()}, {_when(rows)}. Prompts of 1 to {LONGEST:,} random tokens, asked "
        f"together; up to {WRITTEN} tokens written greedily. A first divergence is a near-tie if the two "
        f"likeliest tokens are less than {NEAR:g} apart. Regimes: {served}.",
        "",
        *sorted({f"Versions: {row.versions}." for row in rows}),
        "",
        "| student | regime | dtype | equal | largest gap at a divergence | log-likelihood off by | "
        "distinct tokens of all written | from the prefix cache |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    rounded = any(row.rounding for row in rows)
    if rounded:
        lines[-2] += (
            " equal to float32: in process, vLLM | places where others part from it | "
            "off from float32: in process, vLLM |"
        )
        lines[-1] += "---:|---:|---:|"
    for row in rows:
        cells: list[str | int] = [
            row.student,
            row.regime,
            row.dtype,
            f"{row.equal} of {row.prompts}",
            f"{max(row.gaps):.1e}" if row.gaps else "–",
            f"{row.deviation:.1e}",
            f"{row.distinct} of {row.written}",
            row.cached or "–",
        ]
        if rounded:
            near = row.rounding
            cells += [
                f"{near.our_equal}, {near.vllm_equal}" if near else "–",
                f"{near.our_places}, {near.vllm_places}" if near and near.our_places is not None else "–",
                f"{near.our_deviation:.1e}, {near.vllm_deviation:.1e}" if near else "–",
            ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _when(rows: Sequence[Row]) -> str:
    times = sorted(row.measured for row in rows if row.measured)
    if not times:
        return f"{date.today():%d %B %Y}"
    older = f" (of {len(rows) - len(times)} rows not known)" if len(times) < len(rows) else ""
    return f"{times[0]} to {times[-1]}{older}"


def _processor() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    try:
        models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    except OSError:
        models = []
    name = models[0].split(":")[1].strip() if models else platform.processor() or platform.machine()
    return f"{len(models) or 'some'} cores of {name}"
