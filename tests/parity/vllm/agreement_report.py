"""Results of the vLLM parity study: the criterion of agreement, and the table."""

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
from tests.parity.vllm.agreement_cases import MAX_PROMPT_LENGTH, NUM_GENERATED

NEAR_TIE = 1e-3
"""Log-probabilities closer than this may swap ranks."""
ROUNDING_FACTOR = 2.0
"""Allowed ratio of vLLM's low-precision error to the in-process engine's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementRow:
    """Result of one student in one serving mode."""

    student: str
    mode: str
    dtype: str
    num_prompts: int
    num_equal: int
    gaps: tuple[float, ...]
    """Log-probability difference of the two most likely tokens at each first divergence."""
    num_scored: int
    max_logprob_difference: float
    """Largest difference of a continuation's log-likelihood, nats."""
    num_generated: int
    num_distinct: int
    """Distinct generated tokens: a model that repeats one token proves little."""
    cached_tokens: int
    """Prompt tokens served from vLLM's prefix cache."""
    versions: str
    rounding: "Rounding | None" = None
    """Effect of the dtype alone, if it is not float32."""
    measured: str = ""
    """Time of the measurement, to the minute in UTC; empty if unknown."""

    @property
    def holds(self) -> bool:
        """Whether vLLM agrees with the in-process engine.

        In float32: 99 % of responses are equal, each divergence is a near-tie, and log-likelihoods differ by
        less than `NEAR_TIE`.

        In a lower precision, relative to `Rounding`: vLLM's log-likelihood error is at most `ROUNDING_FACTOR`
        times that of the in-process engine; no response diverges where the gap of the most likely tokens
        exceeds that error; and vLLM has as many divergence points, within three standard deviations of the
        difference between two counts.
        """
        if self.rounding is not None:
            near = ROUNDING_FACTOR * self.rounding.our_max_logprob_difference
            ours, theirs = self.rounding.our_divergence_points, self.rounding.vllm_divergence_points
            if ours is None or theirs is None:  # Rows measured before divergence points were counted.
                ours, theirs = (
                    self.num_prompts - n for n in (self.rounding.our_equal, self.rounding.vllm_equal)
                )
            as_many = theirs - ours <= 3 * math.sqrt(theirs + ours)
            close = self.rounding.vllm_max_logprob_difference <= near and all(
                gap <= near for gap in self.gaps
            )
            return as_many and close
        near = all(gap < NEAR_TIE for gap in self.gaps) and self.max_logprob_difference < NEAR_TIE
        return near and self.num_equal >= 0.99 * self.num_prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounding:
    """Distance of both engines in a lower precision from the in-process engine in float32 on the CPU.

    Args:
        our_equal, vllm_equal: greedy responses equal to float32's, of the in-process engine and of vLLM.
        our_divergence_points, vllm_divergence_points: distinct pairs of tokens at which the other responses
            diverge. A small model reaches the same near-tie from many prompts and diverges in all of them.
        our_max_logprob_difference, vllm_max_logprob_difference: largest difference of a continuation's
            log-likelihood, nats.
    """

    our_equal: int
    our_max_logprob_difference: float
    vllm_equal: int
    vllm_max_logprob_difference: float
    our_divergence_points: int | None = None
    vllm_divergence_points: int | None = None


def read_rows(path: Path) -> list[AgreementRow]:
    """Read the rows of an earlier run."""
    rows = []
    for row in read_jsonl(path):
        rounding = row.get("rounding")
        fields = {**row, "gaps": tuple(row["gaps"]), "rounding": rounding and Rounding(**rounding)}
        rows.append(AgreementRow(**fields))
    return rows


def markdown(rows: Sequence[AgreementRow], modes: Mapping[str, Any]) -> str:
    """Format the rows as a page; `modes` maps serving modes to vLLM's arguments."""
    arguments = "; ".join(f"{name} {json.dumps(given)}" for name, given in modes.items())
    lines = [
        "# Students in vLLM against the in-process engine",
        "",
        f"{_processor()}, {_dates(rows)}. Prompts of 1 to {MAX_PROMPT_LENGTH:,} random tokens, submitted "
        f"together; up to {NUM_GENERATED} tokens generated greedily. A divergence is a near-tie if the two "
        f"most likely tokens differ by less than {NEAR_TIE:g}. Serving modes: {arguments}.",
        "",
        *sorted({f"Versions: {row.versions}." for row in rows}),
        "",
        "| student | mode | dtype | equal | largest gap at a divergence | max log-likelihood difference | "
        "distinct of all generated tokens | cached prompt tokens |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    rounded = any(row.rounding for row in rows)
    if rounded:
        lines[-2] += (
            " equal to float32: in process, vLLM | divergence points: in process, vLLM | "
            "max difference from float32: in process, vLLM |"
        )
        lines[-1] += "---:|---:|---:|"
    for row in rows:
        cells: list[str | int] = [
            row.student,
            row.mode,
            row.dtype,
            f"{row.num_equal} of {row.num_prompts}",
            f"{max(row.gaps):.1e}" if row.gaps else "–",
            f"{row.max_logprob_difference:.1e}",
            f"{row.num_distinct} of {row.num_generated}",
            row.cached_tokens or "–",
        ]
        if rounded:
            cells += _rounding_cells(row.rounding)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _rounding_cells(rounding: Rounding | None) -> list[str]:
    if rounding is None:
        return ["–"] * 3
    ours, theirs = rounding.our_divergence_points, rounding.vllm_divergence_points
    return [
        f"{rounding.our_equal}, {rounding.vllm_equal}",
        f"{ours}, {theirs}" if ours is not None else "–",
        f"{rounding.our_max_logprob_difference:.1e}, {rounding.vllm_max_logprob_difference:.1e}",
    ]


def _dates(rows: Sequence[AgreementRow]) -> str:
    times = sorted(row.measured for row in rows if row.measured)
    if not times:
        return f"{date.today():%d %B %Y}"
    undated = f" ({len(rows) - len(times)} rows undated)" if len(times) < len(rows) else ""
    return f"{times[0]} to {times[-1]}{undated}"


def _processor() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    try:
        models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    except OSError:
        models = []
    name = models[0].split(":")[1].strip() if models else platform.processor() or platform.machine()
    return f"{len(models) or 'some'} cores of {name}"
