"""The benchmark of kernels for inference finds wrong results; times themselves are not tested."""

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evalsuite.models.ops import attention, gates, glu, logprobs, recurrence, rms_norm, rotary, short_conv
from evalsuite.models.ops.dispatch import Op, _copied, op
from evalsuite.models.ops.recurrence import fla_backend, naive_recurrent
from evalsuite.models.ops.recurrence.op import recurrent
from tests.performance import bench_inference_kernels as benchmark
from tests.performance.bench_inference_kernels import TINY, Case, Setting

CPU = Setting(TINY, torch.device("cpu"), torch.float32, ours=False, fla=False)


WAYS = {
    "right": lambda x: [2 * x, x],
    "off": lambda x: [2.1 * x, x],
    "NaN": lambda x: [2 * x, x * math.nan],
    "one result": lambda x: [2 * x],
    "one row": lambda x: [2 * x[:1], x[:1]],
}
"""Implementations that are right, off by 5 %, not finite, and incomplete."""
TWICE = Case("twice", op()(WAYS["right"]), (torch.ones(3, 2),))


def test_wrong_results_are_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark, "setting_here", lambda small: CPU)
    monkeypatch.setattr(benchmark, "cases", lambda *_: iter([TWICE]))
    monkeypatch.setattr(benchmark, "implementations", lambda *_: WAYS)
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
    assert [line.split()[3] for line in shown.out.splitlines()[1:] if "WRONG" not in line] == ["right"]
    assert "one row failed: ValueError: a result of shape [1, 2], not [3, 2]" in shown.err


def test_what_torch_computes_is_right() -> None:
    timings = benchmark.bench(None, CPU, small=True, repeats=1)
    assert all(timing.within_bound for timing in timings)
    assert all(0 <= timing.error < 1e-6 for timing in timings)
    assert len({(timing.operation, timing.implementation) for timing in timings}) == len(timings)
    ops = (logprobs, rms_norm, rotary, gates, glu, attention, short_conv, recurrence)
    kernels = {
        each for module in ops for each in vars(module).values() if isinstance(each, Op) and each.inference
    }
    assert {case.op for case in benchmark.cases(CPU, small=True)} == {*kernels, recurrent}


def test_states_that_are_not_written_are_an_error() -> None:
    torch.manual_seed(0)
    for case in benchmark._with_states(CPU, small=True):
        if "in slots" in case.name:
            (*_, states) = exact = benchmark.outputs(case, case.op.reference(*_copied(case.arguments, None)))
            assert benchmark.worst_error([*exact[:-1], 0.9 * states], exact) > 0.05


def test_padding_and_contexts_change_recurrences() -> None:
    """The cases are no other ones than their names say."""
    states, mask, _ = benchmark._states(CPU, "prompts", 40, 6, 2)
    assert states is None
    assert mask is not None
    assert {int(count) for count in mask.sum(1)} == {3, 4, 5, 6}
    states, _, access = benchmark._states(CPU, "continuations", 8, 6, 2)
    assert access.slots is not None
    assert access.slots.tolist() == [0] * 4 + [1] * 4
    assert access.discards


def test_what_replaces_fla_is_called_as_the_engine_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exact function in place of fla's kernels gives right results, states in slots and pads included."""
    monkeypatch.setattr(fla_backend, "run_rows", lambda kernel, inputs: naive_recurrent(inputs))
    cases = [case for case in benchmark._with_states(CPU, small=True) if case.op is recurrent]
    assert {use for case in cases for use in benchmark.USES if case.name.endswith(use)} == {*benchmark.USES}
    for case in cases:
        function = benchmark.implementations(case, replace(CPU, fla=True))["fla"]
        exact = benchmark.outputs(case, case.op.reference(*_copied(case.arguments, None)))
        assert benchmark.measure(case, "fla", function, exact, CPU, 1).error < 1e-6, case.name


def test_an_unknown_operation_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "cases", lambda *_: iter([TWICE]))
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
