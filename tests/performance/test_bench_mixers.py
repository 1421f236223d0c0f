"""The mixer benchmark computes the right quantities; times themselves are not tested."""

import csv
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from evalsuite.foundation import MissingDependencyError
from evalsuite.models.mixers import AttentionSpan, RecurrentMixer
from evalsuite.models.ops.recurrence import RecurrenceInputs, fla_backend
from evalsuite.models.ops.recurrence.chunked import chunked
from tests.performance import bench_mixers
from tests.performance.bench_fla_naive import FUNCTIONS, against_naive


def test_tables_are_saved_row_by_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench_mixers, "LENGTHS", (8, 16))
    rows = bench_mixers.run_mixers("cpu", tmp_path, names=["mlstm", "kda"], repeats=1)["mixers_cpu"]
    with open(tmp_path / "mixers_cpu.csv") as file:
        assert list(csv.DictReader(file)) == rows
    assert [row["mixer"] for row in rows] == ["mlstm", "kda"]
    assert set(rows[0]) == {"mixer", "ms_per_1000_tokens_at_8", "ms_per_1000_tokens_at_16"}
    assert (tmp_path / "mixers_cpu.md").read_text().count("\n") == 4


def test_a_sliding_window_layer_is_timed_with_its_window() -> None:
    layer: Any = bench_mixers.make_layer("sliding_window", "cpu", torch.float32)
    layer.span = AttentionSpan(5)
    x = torch.randn(1, 12, bench_mixers.HIDDEN)
    out, _ = bench_mixers.forward_backward(layer, x)
    weights, values = layer.attention_matrix(x, bench_mixers.rotary(12, "cpu", torch.float32))
    wanted = layer.o_proj(torch.einsum("bhts,bshv->bthv", weights, values).flatten(2))
    assert torch.allclose(out, wanted, atol=1e-5)
    assert not weights[..., 11, :7].any()


@pytest.mark.parametrize("name", ["retnet", "mlstm", "gla", "kda"])
def test_errors_of_a_kernel_and_of_a_layer(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A fake kernel whose keys are scaled by 1.1 has large errors; an exact one has none."""
    key_scale = 1.0

    def kernel(_: fla_backend.Kernel, inputs: RecurrenceInputs) -> tuple[Tensor, Tensor]:
        return chunked(replace(inputs, k=inputs.k * key_scale))

    monkeypatch.setattr(fla_backend, "scalar_decay_backward_broken", lambda: False)
    monkeypatch.setattr(fla_backend, "run", kernel)
    layer = bench_mixers.make_layer(name, "cpu", torch.bfloat16)
    assert isinstance(layer, RecurrentMixer)
    x = torch.randn(1, 20, bench_mixers.HIDDEN).bfloat16()
    found = bench_mixers.kernel_errors(layer, x)
    assert found["kernel_output_error"] == "0.0e+00"
    key_scale = 1.1
    assert float(bench_mixers.kernel_errors(layer, x)["kernel_output_error"]) > 0.05
    against_float32 = bench_mixers.layer_errors(layer, x)
    assert 1e-4 < float(against_float32["layer_error_torch"]) < 3e-2


def test_without_fla_the_error_refers_to_the_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fla", None)
    with pytest.raises(
        MissingDependencyError, match="see the docstring of tests/performance/bench_fla_naive"
    ):
        against_naive(*FUNCTIONS[0], repeats=1)
