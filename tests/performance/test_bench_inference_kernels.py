"""The benchmark of kernels for inference finds wrong results; times themselves are not tested."""

import csv
import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from evalsuite.models.ops.recurrence import RecurrenceInputs, fla_backend, naive_recurrent
from evalsuite.models.ops.short_conv import short_convolutions
from tests.performance import bench_inference_kernels as benchmark
from tests.performance.inference_kernels import layers, states
from tests.performance.inference_kernels.case import TINY, Case, Setting, Way

CPU = Setting(TINY, torch.device("cpu"), torch.float32, ours=False, fla=False)


def doubled(x: Tensor) -> Case:
    """An operation with implementations that are right, off by 5 %, not finite, and incomplete."""
    right = [2 * x, x]
    wrong = {
        "off": [2.1 * x, x],
        "NaN": [2 * x, x * math.nan],
        "one result": right[:1],
        "one row": [each[:1] for each in right],
    }
    ways = [Way("right", lambda: right), *(Way(name, lambda y=y: y) for name, y in wrong.items())]
    return Case("twice", lambda: [each.double() for each in right], ways)


def test_wrong_results_are_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "setting_here", lambda small: CPU)
    monkeypatch.setattr(benchmark, "cases", lambda *_: iter([doubled(torch.ones(3, 2))]))
    assert benchmark.main(["--small", "--repeats", "1", "--out", str(tmp_path)]) == 1
    with open(tmp_path / "inference_kernels.csv") as file:
        rows = {row["implementation"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["right", "off", "NaN", "one result", "one row"]
    assert {name: row["max_relative_error"] for name, row in rows.items()} == {
        "right": "0.0e+00",
        "off": "5.0e-02",
        "NaN": "nan",
        "one result": "nan",
        "one row": "nan",
    }
    assert [name for name, row in rows.items() if row["host_ms"]] == ["right", "off", "NaN"]
    assert not any(row["device_ms"] for row in rows.values())
    shown = capsys.readouterr()
    assert [line.split()[1] for line in shown.out.splitlines() if "WRONG" not in line] == [
        "implementation",
        "right",
    ]
    assert "one row failed: ValueError: a result of shape [1, 2], not [3, 2]" in shown.err


def test_what_torch_computes_is_right() -> None:
    timings = benchmark.bench(None, CPU, small=True, repeats=1)
    assert all(timing.within_bound for timing in timings)
    assert all(0 <= timing.error < 1e-6 for timing in timings)
    assert len({(timing.operation, timing.implementation) for timing in timings}) == len(timings)
    assert {timing.operation.split(" [")[0] for timing in timings} == {
        "logprobs kernel",
        "norms of two tensors",
        "norm of heads",
        "rotary",
        "gates of the delta rule",
        "norm of a sum",
        "gated values",
        "norm of a sum and gated MLP",
        "recurrence",
        "convolutions of three parts",
        "branch attention 8 x 3, contexts up to 5",
        "decode attention",
        "rotary and cache",
    }


@pytest.mark.parametrize("use", ["in place", "in slots"])
def test_states_that_are_not_written_are_an_error(use: states.Use) -> None:
    torch.manual_seed(0)
    start = states.States.draw(CPU, use, 3, 1, (2, 4))
    outputs, new = torch.randn(3, 5), torch.randn(3, 2, 4)

    def writes(given: states.States) -> tuple[Tensor, Tensor]:
        assert given.stored is not None
        given.write(new.to(given.stored.dtype))
        return outputs, new

    exact = start.to(torch.float64)
    wanted = exact.results(writes(exact))
    for name, compute in {"right": writes, "wrong": lambda given: (outputs, new)}.items():
        way = start.way(name, compute)
        error = benchmark.worst_error(way.outputs(way.call()), wanted)
        assert (error < 1e-6) == (name == "right")


def test_padding_and_contexts_change_recurrences() -> None:
    """The cases are no other ones than their names say."""
    prompts = states.States.draw(CPU, "prompts", 40, 6, (2,))
    assert prompts.stored is None
    assert prompts.real is not None
    assert {int(count) for count in prompts.real.sum(1)} == {3, 4, 5, 6}
    contexts = states.States.draw(CPU, "continuations", 8, 6, (2,))
    assert contexts.stored is not None
    assert torch.equal(contexts.read(), contexts.stored.repeat_interleave(4, 0))
    assert contexts.access().discards


def test_what_replaces_fla_is_called_as_the_engine_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact functions in place of fla's kernels give right results, states in slots and padding included."""

    def causal_conv1d(x: Tensor, weight: Tensor, activation: str, cu_seqlens: None) -> tuple[Tensor]:
        (y,), _ = short_convolutions.reference([x], [weight], int(activation == "silu"))
        return (y,)

    def run_rows(kernel: fla_backend.Kernel, inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
        return naive_recurrent(inputs)

    monkeypatch.setitem(sys.modules, "fla", ModuleType("fla"))
    monkeypatch.setitem(sys.modules, "fla.modules", ModuleType("fla.modules"))
    conv: Any = ModuleType("fla.modules.causal_conv1d")
    conv.causal_conv1d = causal_conv1d
    monkeypatch.setitem(sys.modules, conv.__name__, conv)
    monkeypatch.setattr(fla_backend, "run_rows", run_rows)
    names = set()
    with torch.inference_mode():
        for case in states.cases(replace(CPU, fla=True), small=True):
            exact = case.exact()
            for way in case.ways:
                if way.name.startswith("fla"):
                    assert benchmark.worst_error(way.outputs(way.call()), exact) < 1e-6, case.operation
                    names.add(way.name)
    assert names == {
        "fla causal_conv1d, one by one",
        *(f"fla {kernel.name}" for kernel in fla_backend.RECURRENT_KERNELS.values()),
        *(f"fla {kernel.name}, copies of states" for kernel in fla_backend.RECURRENT_KERNELS.values()),
        "fla fused_recurrent_simple_gla, mask",
        "fla fused_recurrent_gated_delta_rule, mask",
    }


def test_an_unknown_operation_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def few(setting: Setting, small: bool) -> Iterator[Case]:
        yield layers.gated(setting, 2, 1)

    monkeypatch.setattr(benchmark, "cases", few)
    with pytest.raises(benchmark.ConfigError, match="no operation's name contains convolution"):
        benchmark.main(["--small", "--only", "convolution"])


@pytest.mark.gpu
def test_kernels_are_right() -> None:
    setting = benchmark.setting_here(small=True)
    if not setting.ours:
        pytest.skip("neither a CUDA device nor Triton's interpreter")
    timings = benchmark.bench(None, replace(setting, fla=False), small=True, repeats=1)
    assert [timing for timing in timings if not timing.within_bound] == []
    assert {timing.operation for timing in timings if timing.implementation == "ours"} == {
        timing.operation for timing in timings
    }
