"""The benchmark of kernels measures errors of outputs and of every gradient."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.performance import bench_kernels
from tests.performance.bench_kernels import cases, worst_error


@pytest.mark.parametrize("width", [576, 2048])
def test_plain_torch_is_within_bfloat16_of_float64(width: int) -> None:
    names = []
    for name, make, inputs in cases(width, "cpu", 64, 500):
        operation = make("torch")
        assert operation is not None
        assert 1e-4 < worst_error(name, operation, operation, inputs) < 1e-2
        names.append(name)
    assert names == list(bench_kernels.GRADIENTS)


def test_a_missing_gradient_is_an_error() -> None:
    torch.manual_seed(0)
    (inputs,) = (inputs for name, _, inputs in cases(576, "cpu", 64, 500) if name == "gla_gate")
    exact = bench_kernels.gla_gate("torch")
    assert exact is not None

    def wrong(logits: Tensor, k: Tensor) -> Sequence[Tensor]:
        log_decay, scaled = exact(logits, k)
        return log_decay, scaled + 0.1 * k

    assert worst_error("gla_gate", wrong, exact, inputs) > 0.05


def test_packages_that_are_missing_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_kernels.importlib.util, "find_spec", lambda name: None)
    assert [peer for peer in bench_kernels.PEERS if bench_kernels.installed(peer)] == [
        "ours",
        "compile",
        "torch",
    ]
