"""Kernels for inference against what they replace: the ops' references in torch, and fla's kernels.

    python -m tests.performance.bench_inference_kernels --out DIR
    TRITON_INTERPRET=1 python -m tests.performance.bench_inference_kernels --small

Every row is one implementation of an op at SmolLM2-135M's shape, in bfloat16 on CUDA: milliseconds on the
device and of the host that launches it (medians of ten), and the largest relative error of its results
against the reference in float64 (of recurrences, float32). Calls are launched behind a pause of the device,
so that its time does not include the host's. They repeat with the same inputs, of which small ones are then
in the L2 cache. Packages that are not installed are left out.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from evalsuite.cli.exit_codes import guarded
from evalsuite.foundation import ConfigError, write_text
from evalsuite.foundation.parser import Parser
from evalsuite.models.ops import attention, gates, glu, logprobs, packages, rms_norm, rotary, short_conv
from evalsuite.models.ops.dispatch import Op, _copied, _tensors
from evalsuite.models.ops.recurrence import RecurrenceInputs, StateAccess, fla_backend
from evalsuite.models.ops.recurrence.inputs import DecayShape
from evalsuite.models.ops.recurrence.op import recurrent
from tests.performance.bench_mixers import Row, to_csv

REPEATS = 10
MAX_ERROR = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
"""Largest relative error, as that of kernels that prove themselves to the engine."""
CYCLES_PER_MS = 2_000_000
"""Cycles of the device in a millisecond, or a few more."""
USES = ("", "in place", "in slots", "continuations", "prompts")
"""States of rows: their own; written over, as in a decode step; in another order, as in vLLM; one of a
context for four rows, which write none; none, of padded rows."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int


SMOLLM2_135M = Shape(576, 9, 3, 64, 1536, 49152)
TINY = Shape(48, 3, 1, 16, 80, 3000)


@dataclass(frozen=True, slots=True)
class Setting:
    """Where ops run, at which shape, and which packages compute them besides torch."""

    shape: Shape
    device: torch.device
    dtype: torch.dtype
    ours: bool
    fla: bool

    def draw(self, *size: int) -> Tensor:
        """Standard normal values in the dtype of the setting."""
        return torch.randn(*size, device=self.device, dtype=self.dtype)

    def below(self, high: int, *size: int) -> Tensor:
        """Indices from 0 up to `high`."""
        return torch.randint(high, size, device=self.device)


@dataclass(frozen=True, slots=True)
class Case:
    """A call of an op whose implementations are compared."""

    name: str
    op: Op[..., Any]
    arguments: tuple[Any, ...]
    results: int | None = None
    """Number of results that count, the first ones; None: all."""

    @property
    def title(self) -> str:
        """Its name and the shape of its first input."""
        return f"{self.name} {list(next(_tensors([_plain(self.arguments[0])])).shape)}"


@dataclass(frozen=True, slots=True)
class Timing:
    """One implementation of an op; see `row`."""

    operation: str
    implementation: str
    device_ms: float | None
    host_ms: float | None
    """None if it failed."""
    error: float
    """NaN if it failed."""
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


def _plain(argument: Any) -> Any:
    return argument.q if isinstance(argument, RecurrenceInputs) else argument


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
    """All ops; each has its inputs only while it is the current one."""
    yield from _elementwise(setting, ((3, 1), (2, 5)) if small else ((512, 1), (4000, 21), (2000, 45)), small)
    yield from _attention(setting, small)
    yield from _with_states(setting, small)


def _elementwise(setting: Setting, sizes: Sequence[tuple[int, int]], small: bool) -> Iterator[Case]:
    shape, draw = setting.shape, setting.draw
    heads, width, hidden, wide = shape.heads, shape.head_dim, shape.hidden, shape.intermediate
    count = 7 if small else 5461
    logits, tokens = draw(count, shape.vocabulary), setting.below(shape.vocabulary, count)
    tokens[::2] = logits[::2].argmax(-1)
    found = torch.empty(count, device=setting.device), torch.empty_like(tokens, dtype=torch.bool)
    bounds = torch.arange(count + 1, device=setting.device)
    yield Case("log-probabilities", logprobs.row_logprobs, (logits, 0, bounds, tokens, *found))
    for size in sizes:
        yield Case(
            "norm of a sum", rms_norm.rms_norm, (draw(*size, hidden), draw(hidden), 1e-5, draw(*size, hidden))
        )
        sandwich = draw(*size, hidden), draw(hidden), 1e-5, draw(*size, hidden), draw(hidden), "one_plus"
        yield Case("norm of a norm's sum", rms_norm.sandwich_norm, sandwich)
        q, k = draw(*size, heads, width), draw(*size, shape.kv_heads, width)
        yield Case(
            "norms of queries, keys",
            rms_norm.qk_norm,
            (q, k, draw(width), draw(width), 1e-5, "rounded_first"),
        )
        yield Case("norm of heads", rms_norm.rms_norm, (draw(*size, heads, width), draw(width), 1e-5))
        yield Case("keys of length one", rms_norm.l2_norm, tuple(draw(*size, heads, width) for _ in range(2)))
        yield Case(
            "rotary", rotary.rotary, (draw(*size, heads, width), draw(*size, width), draw(*size, width))
        )
        a, b = draw(*size, 2 * heads + -2 * heads % 16)[..., : 2 * heads].split(heads, -1)
        yield Case("gates of the delta rule", gates.gates_of_logits, (a, b, draw(heads), draw(heads), 1.0))
        yield Case("gated values", glu.glu, draw(*size, 2 * wide).split(wide, -1))


def _attention(setting: Setting, small: bool) -> Iterator[Case]:
    shape, draw = setting.shape, setting.draw
    heads, kv_heads, width = shape.heads, shape.kv_heads, shape.head_dim
    for rows, tokens, known in ((8, 3, 5),) if small else ((4000, 21, 70), (1200, 1, 1000)):
        own, old = draw(2, rows, kv_heads, tokens, width), draw(2, rows // 4, kv_heads, known, width)
        parents = torch.arange(rows, device=setting.device) // 4
        lengths = 1 + setting.below(known, rows // 4)
        arguments = draw(rows, tokens, heads, width), *own, *old, parents, lengths, width**-0.5
        yield Case("attention of continuations", attention.branch_attention, arguments)
    for rows, length in ((3, 70),) if small else ((512, 320), (64, 2048), (8, 8192)):
        cache = draw(2, rows, kv_heads, length, width)
        places = length // 4 + setting.below(length - length // 4, rows)
        arguments = draw(rows, heads, 1, width), *cache, places, width**-0.5
        yield Case("attention of a step", attention.decode_attention, arguments)
    for rows, tokens, length in ((3, 1, 5), (2, 3, 3)) if small else ((512, 1, 320), (4000, 21, 21)):
        sizes = [heads * width, kv_heads * width, kv_heads * width]
        parts = (x.unflatten(-1, (-1, width)) for x in draw(rows * tokens, sum(sizes)).split(sizes, -1))
        stored = torch.zeros_like(draw(2, rows, kv_heads, length, width))
        first = setting.below(length - tokens + 1, rows, 1)
        places = (first + torch.arange(tokens, device=setting.device)).flatten()
        arguments = *parts, *draw(2, rows, tokens, width), *stored, places
        yield Case("rotary and cache", attention.rotate_and_store, arguments)


def _with_states(setting: Setting, small: bool) -> Iterator[Case]:
    every = ((3, 1), (4, 5)) if small else ((512, 1), (2048, 1), (2000, 45))
    others = () if small else ((8000, 10), (4000, 21), (1000, 90), (700, 128), (64, 128))
    for rows, tokens in (*every, *others):
        for use in USES[:3] if tokens == 1 else (*USES[:2], *USES[3:]):
            for decay in get_args(DecayShape) if (rows, tokens) in every else ("scalar",):
                if use in ("", "in place") or decay == "scalar":
                    yield from (
                        _recurrence(setting, rows, tokens, decay, delta, use) for delta in (False, True)
                    )
            if (rows, tokens) not in others[2:] and (use != "in place" or tokens == 1):
                yield _convolutions(setting, rows, tokens, use)


def _states(
    setting: Setting, use: str, rows: int, tokens: int, *shape: int
) -> tuple[Tensor | None, Tensor | None, StateAccess]:
    """States, the mask of real tokens, and how the states may be used."""
    places = torch.arange(rows, device=setting.device)
    slots = {"in slots": torch.randperm(rows, device=setting.device), "continuations": places // 4}.get(use)
    access = StateAccess(slots, in_place=use == "in place", discards=use == "continuations")
    if use == "prompts":
        lengths = tokens // 2 + setting.below(tokens - tokens // 2 + 1, rows, 1)
        return None, torch.arange(tokens, device=setting.device) < lengths, access
    count = rows // 4 if use == "continuations" else rows
    return 0.1 * torch.randn(count, *shape, device=setting.device), None, access


def _recurrence(setting: Setting, rows: int, tokens: int, decay: DecayShape, delta: bool, use: str) -> Case:
    heads, width = setting.shape.heads, setting.shape.head_dim
    size = rows, tokens, heads, width
    states, mask, access = _states(setting, use, rows, tokens, heads, width, width)
    q, k = (functional.normalize(setting.draw(*size).float(), dim=-1).to(setting.dtype) for _ in range(2))
    logs = functional.logsigmoid(torch.randn(size, device=setting.device) + 3)
    decays = {"none": None, "head": logs[0, 0, :, 0], "scalar": logs[..., 0], "channel": logs}[decay]
    inputs = RecurrenceInputs(
        q,
        k,
        setting.draw(*size),
        log_decay=None if decays is None else decays.contiguous(),
        beta=torch.rand(size[:3], device=setting.device) if delta else None,
        scale=width**-0.5,
        initial_state=states,
        token_mask=mask,
        access=access,
    )
    name = ", ".join(filter(None, ("recurrence", decay, "delta" * delta, use)))
    return Case(name, recurrent, (inputs,), 1 if access.discards else None)


def _convolutions(setting: Setting, rows: int, tokens: int, use: str) -> Case:
    width = setting.shape.hidden
    states, mask, access = _states(setting, use, rows, tokens, 3 * width, 3)
    parts = setting.draw(rows, tokens, 3 * width + 32)[..., : 3 * width].split(width, -1)
    weights = [setting.draw(width, 4) / 2 for _ in parts]
    states = None if states is None else states.to(setting.dtype)
    arguments = parts, weights, 3, states, mask, None, access
    name = ", ".join(filter(None, ("convolutions", use)))
    return Case(name, short_conv.short_convolutions, arguments, 3 if access.discards else None)


def fla_recurrence(inputs: RecurrenceInputs) -> tuple[Tensor, Tensor | None]:
    """The recurrence by fla's kernel, which wants masks applied and states copied from and to their slots."""
    delta, states, slots = inputs.beta is not None, inputs.initial_state, inputs.access.slots
    kernel = fla_backend.RECURRENT_KERNELS[inputs.plain().decay_shape, delta]
    o, last = fla_backend.run_rows(kernel, inputs.plain())
    if inputs.token_mask is not None:
        o = o * inputs.token_mask[..., None, None]
    if states is not None and slots is not None and not inputs.access.discards:
        states[slots] = last
        return o, states
    return o, last


def implementations(case: Case, setting: Setting) -> dict[str, Callable[..., Any]]:
    """Name → function of the op's arguments."""
    found: dict[str, Callable[..., Any]] = {"ours": case.op.load("inference")} if setting.ours else {}
    if setting.fla and case.op is recurrent:
        found["fla"] = fla_recurrence
    elif setting.fla and case.op.training is not None:
        where = case.op.training.where
        if where is None or where(*case.arguments):
            found["kernel of training"] = case.op.load("training")
    return found | {"torch": case.op.reference}


def outputs(case: Case, found: Any) -> list[Tensor]:
    """Results that count."""
    return list(_tensors(found))[: case.results]


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


def host_ms(call: Callable[[], object]) -> float:
    """Milliseconds after which a call returns."""
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)


def times_on_device(call: Callable[[], object], pause_ms: float) -> tuple[float, float]:
    """Milliseconds of a call on the device, which pauses before it, and on the host."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(int(CYCLES_PER_MS * pause_ms))
    begin.record()
    host = host_ms(call)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end), host


def measure(
    case: Case,
    name: str,
    function: Callable[..., Any],
    exact: Sequence[Tensor],
    setting: Setting,
    repeats: int,
) -> Timing:
    """Check an implementation by its first call, then time it; it has inputs of its own to write over."""
    arguments = _copied(case.arguments, None)
    error = worst_error(outputs(case, function(*arguments)), exact)

    def call() -> None:
        function(*arguments)

    device = None
    if setting.device.type == "cuda":
        torch.cuda.synchronize()
        # Longer than the host takes, so that nothing on the device waits for it.
        pause_ms = 0.5 + 3 * host_ms(call)
        pairs = [times_on_device(call, pause_ms) for _ in range(repeats)]
        device, host = (statistics.median(each) for each in zip(*pairs, strict=True))
    else:
        host = statistics.median(host_ms(call) for _ in range(repeats))
    return Timing(case.title, name, device, host, error, error <= MAX_ERROR[setting.dtype])


@torch.inference_mode()
def bench(
    out: Path | None, setting: Setting, *, small: bool, only: Sequence[str] = (), repeats: int = REPEATS
) -> list[Timing]:
    """Measure the ops whose names contain one of `only` (all without), and write a CSV file under `out`."""
    if setting.fla:
        from evalsuite.models.ops import tuning

        tuning.install()
    torch.manual_seed(0)
    found: list[Timing] = []
    for case in cases(setting, small):
        if only and not any(part in case.name for part in only):
            continue
        print(case.title, file=sys.stderr, flush=True)
        # In float64 the states of a recurrence would take longer than all that is measured.
        wide = _copied(case.arguments, torch.float32 if case.op is recurrent else torch.float64)
        exact = outputs(case, case.op.reference(*wide))
        for name, function in implementations(case, setting).items():
            try:
                found.append(measure(case, name, function, exact, setting, repeats))
            except Exception as error:  # A failing implementation is a result; the others still run.
                print(f"{name} failed: {type(error).__name__}: {error}", file=sys.stderr)
                found.append(Timing(case.title, name, None, None, math.nan, False))
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
    parser.add_argument("--only", action="append", help="ops whose names contain this (repeatable)")
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
