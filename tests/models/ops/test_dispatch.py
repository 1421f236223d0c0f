"""Which implementation of an op runs, and what happens if a kernel fails its proof."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from evalsuite.models.ops import dispatch, tuning
from evalsuite.models.ops.dispatch import Draw, Kernel, Op, op


def samples(draw: Draw, *form: int) -> Iterator[tuple[Any, ...]]:
    yield draw(3, *form), draw(3, *form)


def make(
    monkeypatch: pytest.MonkeyPatch, factor: float = 1.0, **inference: Any
) -> Op[[Tensor, Tensor], Tensor]:
    """An op of another package than evalsuite.models.ops, whose kernels return the sum of the arguments times
    a factor; that of training refuses ones."""

    @op(
        training=Kernel(module="training", where=lambda x, y: x.shape[0] > 1),
        inference=Kernel(module="inference", samples=samples, **inference),
    )
    def add(x: Tensor, y: Tensor) -> Tensor:
        calls.append("reference")
        return x + y

    def kernel(kind: str) -> Any:
        def compute(x: Tensor, y: Tensor) -> Tensor:
            calls.append(kind)
            return (x + y) * factor

        return SimpleNamespace(add=compute)

    for kind in ("training", "inference"):
        monkeypatch.setitem(sys.modules, f"{__package__}.{kind}", kernel(kind))

    calls: list[str] = []
    add.calls = calls  # type: ignore[attr-defined]
    monkeypatch.setattr(dispatch, "use_triton", lambda x: True)
    monkeypatch.setattr(dispatch, "_messages", set())
    return add


def used(add: Any, *arguments: Any, gradients: bool = False) -> str:
    add.proven(torch.device("cpu"), torch.float32)
    add.calls.clear()
    with torch.set_grad_enabled(gradients):
        add(*arguments)
    (found,) = add.calls
    return str(found)


def test_gradients_and_arguments_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    add, one, two = make(monkeypatch), torch.ones(1), torch.ones(2)
    assert used(add, two, two) == "inference"
    assert used(add, two, two, gradients=True) == "training"
    assert used(add, one, one, gradients=True) == "reference"
    narrow = make(monkeypatch, where=lambda x, y: x.shape[0] == 1)
    assert used(narrow, one, one) == "inference"
    assert used(narrow, two, two) == "training"
    assert used(make(monkeypatch, dtypes=dispatch.HALF), one, one) == "reference"


def test_a_cpu_computes_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    add = make(monkeypatch)
    monkeypatch.setattr(dispatch, "use_triton", lambda x: False)
    assert used(add, torch.ones(2), torch.ones(2)) == "reference"
    assert not add.applies(torch.ones(2), torch.ones(2))
    with torch.no_grad():
        assert not add.has_kernel(torch.ones(2))


@pytest.mark.parametrize(("factor", "exact"), [(1.01, False), (1 + 2**-20, True)])
def test_a_kernel_that_is_off_is_not_used(
    factor: float, exact: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    add = make(monkeypatch, factor, exact=exact)
    assert used(add, torch.ones(1), torch.ones(1)) == "reference"
    assert used(add, torch.ones(2), torch.ones(2)) == "training"
    assert "add in torch: the kernel is off by" in caplog.text
    assert len(caplog.messages) == 1


def test_a_kernel_that_does_not_compile_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    add = make(monkeypatch)
    monkeypatch.setattr(add, "load", lambda kind: 1 / 0)
    assert used(add, torch.ones(1), torch.ones(1)) == "reference"
    assert "add in torch: division by zero" in caplog.text


def test_each_form_is_proven_once(monkeypatch: pytest.MonkeyPatch) -> None:
    add: Any = make(monkeypatch, form=lambda x, y: (x.shape[-1],))
    device = torch.device("cpu")
    for width in (5, 5, 6):
        add.proven(device, torch.float32, width)
    assert add.calls == ["inference", "reference"] * 2
    assert add.deviations(device, torch.bfloat16, 7)[0] < 1e-2


@pytest.mark.parametrize(("factor", "proven"), [(1.0, True), (1.01, False)])
def test_proofs_wait_while_launches_are_recorded(
    monkeypatch: pytest.MonkeyPatch, factor: float, proven: bool
) -> None:
    """A recorded launch leaves its output as it was, and workers can compile meanwhile."""
    active, device = tuning.KernelTuning([]), torch.device("cpu")
    monkeypatch.setattr(tuning, "_active", active)
    half = make(monkeypatch, dtypes=dispatch.HALF)
    add: Any = make(monkeypatch, factor)
    active.recording = True
    assert [add.proven(device, torch.float32) for _ in range(2)] == [True, True]
    assert not half.proven(device, torch.float32)
    assert add.calls == []
    active.recording = False
    tuning.run_postponed()
    assert add.calls == ["inference", "reference"]
    assert add.proven(device, torch.float32) is proven
    tuning.run_postponed()
    assert add.calls == ["inference", "reference"]


def test_modes_without_gradients_have_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    add = make(monkeypatch)
    modes: list[tuple[AbstractContextManager[Any], bool]] = [
        (torch.no_grad(), True),
        (torch.inference_mode(), True),
        (torch.enable_grad(), False),
    ]
    for mode, expected in modes:
        with mode:
            assert add.has_kernel(torch.ones(2)) == expected
