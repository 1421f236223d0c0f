"""Kernels for inference against what they replace: fla's kernels and torch, in bfloat16 on CUDA.

    python -m tests.performance.bench_inference_kernels --out DIR
    TRITON_INTERPRET=1 python -m tests.performance.bench_inference_kernels --small

Every row is one implementation of an operation at SmolLM2-135M's shape: milliseconds on the device and of the
host that launches it (medians of ten), and the largest relative error of its results against float64 (of
recurrences, float32). Calls are launched behind a pause of the device, so that its time does not include the
host's. They repeat with the same inputs, of which small ones are then in the L2 cache. Packages that are not
installed are left out.

On a CPU, for which `--small` is meant, there are only the host's times, in float32; our kernels run there in
Triton's interpreter.

Exit codes: 0 all errors are within the bound, 1 one is not or an implementation failed, 64 or more an error.
"""

import argparse
import importlib.util
import math
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from evalsuite.cli.exit_codes import guarded
from evalsuite.cli.parser import Parser
from evalsuite.foundation import ConfigError, write_text
from evalsuite.models.ops import packages
from tests.performance.bench_mixers import Row, to_csv
from tests.performance.inference_kernels import attention, layers, states
from tests.performance.inference_kernels.case import SMOLLM2_135M, TINY, Case, Setting, Way

REPEATS = 10
MAX_ERROR = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
"""Largest relative error, as that of kernels that prove themselves to the engine."""
CYCLES_PER_MS = 2_000_000
"""Cycles of the device in a millisecond, or a few more."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One implementation of an operation.

    Args:
        device_ms: median time of a call on the device; None on a CPU.
        host_ms: median time after which a call returns; None if the implementation failed.
        error: largest relative error (Frobenius norm) of its results; NaN if it failed.
        within_bound: whether it is a small enough number.
    """

    operation: str
    implementation: str
    device_ms: float | None
    host_ms: float | None
    error: float
    within_bound: bool

    def row(self) -> Row:
        """The timing as a row of a table."""
        times = ("" if ms is None else f"{ms:.3f}" for ms in (self.device_ms, self.host_ms))
        return {
            "operation": self.operation,
            "implementation": self.implementation,
            **dict(zip(("device_ms", "host_ms"), times, strict=True)),
            "max_relative_error": f"{self.error:.1e}",
        }


def setting_here(small: bool) -> Setting:
    """The GPU of this machine in bfloat16, or its CPU in float32."""
    cuda = torch.cuda.is_available()
    triton = importlib.util.find_spec("triton") is not None
    return Setting(
        shape=TINY if small else SMOLLM2_135M,
        device=torch.device("cuda" if cuda else "cpu"),
        # Triton's interpreter has no products of matrices in bfloat16.
        dtype=torch.bfloat16 if cuda else torch.float32,
        ours=triton and (cuda or os.environ.get("TRITON_INTERPRET") == "1"),
        fla=not packages.unavailable_reason(),
    )


def cases(setting: Setting, small: bool) -> Iterator[Case]:
    """All operations; each has its inputs only while it is the current one."""
    rooms = (layers.cases, states.cases, attention.cases)
    return chain.from_iterable(each(setting, small) for each in rooms)


def worst_error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Largest ‖found − exact‖ ÷ ‖exact‖; NaN if any result has one.

    Raises:
        ValueError: a result is missing or has another shape.
    """
    errors = []
    for mine, right in zip(found, exact, strict=True):
        if mine.shape != right.shape:
            raise ValueError(f"a result of shape {list(mine.shape)}, not {list(right.shape)}")
        errors.append((mine.double() - right.double()).norm() / right.double().norm())
    return float(torch.stack(errors).max())


def host_ms(way: Way) -> float:
    """Milliseconds after which a call returns."""
    start = time.perf_counter()
    way.call()
    return 1000 * (time.perf_counter() - start)


def times_on_device(way: Way, pause_ms: float) -> tuple[float, float]:
    """Milliseconds of a call on the device, which pauses before it, and on the host."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(int(CYCLES_PER_MS * pause_ms))
    begin.record()
    host = host_ms(way)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end), host


def measure(case: Case, way: Way, exact: Sequence[Tensor], setting: Setting, repeats: int) -> Timing:
    """Check an implementation by its first call, then time it."""
    error = worst_error(way.outputs(way.call()), exact)
    device = None
    if setting.device.type == "cuda":
        torch.cuda.synchronize()
        # Longer than the host takes, so that nothing on the device waits for it.
        pause_ms = 0.5 + 3 * host_ms(way)
        pairs = [times_on_device(way, pause_ms) for _ in range(repeats)]
        device, host = (statistics.median(each) for each in zip(*pairs, strict=True))
    else:
        host = statistics.median(host_ms(way) for _ in range(repeats))
    return Timing(case.operation, way.name, device, host, error, error <= MAX_ERROR[setting.dtype])


@torch.inference_mode()
def bench(
    out: Path | None, setting: Setting, *, small: bool, only: Sequence[str] = (), repeats: int = REPEATS
) -> list[Timing]:
    """Measure the operations that contain one of `only` (all without), and write a CSV file under `out`."""
    if setting.fla:
        from evalsuite.models.ops import tuning

        tuning.install()
    torch.manual_seed(0)
    found: list[Timing] = []
    for case in cases(setting, small):
        if only and not any(part in case.operation for part in only):
            continue
        print(case.operation, file=sys.stderr, flush=True)
        exact = case.exact()
        for way in case.ways:
            try:
                found.append(measure(case, way, exact, setting, repeats))
            except Exception as error:  # A failing implementation is a result; the others still run.
                print(f"{way.name} failed: {type(error).__name__}: {error}", file=sys.stderr)
                found.append(Timing(case.operation, way.name, None, None, math.nan, False))
        if out is not None:
            write_text(out / "inference_kernels.csv", to_csv([timing.row() for timing in found]))
    return found


def table(timings: Sequence[Timing]) -> str:
    """Rows in columns; those whose errors are beyond the bound are marked."""
    rows = [timing.row() for timing in timings]
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    marks = ["", *("" if timing.within_bound else "  WRONG" for timing in timings)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        + mark
        for line, mark in zip(lines, marks, strict=True)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, measure, and print a table; 1 if a result is wrong."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="operations whose names contain this (repeatable)")
    parser.add_argument("--small", action="store_true", help="a tiny shape and few rows, for a CPU")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--out", type=Path, help="folder for inference_kernels.csv")
    options = parser.parse_args(arguments)
    timings = bench(
        options.out,
        setting_here(options.small),
        small=options.small,
        only=options.only or (),
        repeats=options.repeats,
    )
    if not timings:
        raise ConfigError(f"no operation's name contains {' or '.join(options.only)}")
    print(table(timings))
    return int(not all(timing.within_bound for timing in timings))


if __name__ == "__main__":
    sys.exit(guarded("bench_inference_kernels", main, resumable=False))
