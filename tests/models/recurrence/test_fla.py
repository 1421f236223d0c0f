"""fla's kernels against the torch backend on a GPU: outputs and all gradients."""

import math
from typing import Any

import pytest
import torch

from evalsuite.models.mixers.convolution import convolve
from evalsuite.models.recurrence import last_kernels, recurrence, set_backend
from tests.parity.kernel_accuracy import MAX_ERROR, SETTINGS, kernels_for, max_errors

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)


@pytest.fixture(autouse=True)
def first_config_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autotuning compiles all configurations of a kernel, which takes minutes.

    The comparison with autotuned kernels is `python -m tests.parity.kernel_accuracy`.
    """
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.errors import OutOfResources

    settled: dict[int, Any] = {}

    def bench(tuner: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        if settled.get(id(tuner)) is tuner.nargs:
            return [math.inf] * 3
        current = {**meta, **config.all_kwargs()}
        tuner.pre_hook({**tuner.nargs, **current})
        try:
            tuner.fn.run(*args, **current)
        except OutOfResources as error:
            tuner.post_hook({**tuner.nargs, **current}, exception=error)
            return [math.inf] * 3
        tuner.post_hook({**tuner.nargs, **current}, exception=None)
        settled[id(tuner)] = tuner.nargs
        return [0.0] * 3

    monkeypatch.setattr(Autotuner, "_bench", bench)
    monkeypatch.setattr(Autotuner, "check_disk_cache", lambda tuner, key, configs, run: run())


CASES = [(decay, delta) for decay in ("none", "head", "scalar", "channel") for delta in (False, True)]


@pytest.mark.parametrize(("decay", "delta"), CASES)
@pytest.mark.parametrize(("dtype", "width"), SETTINGS, ids=["bf16-64", "bf16-128", "fp32-64"])
def test_fla_matches_torch(
    monkeypatch: pytest.MonkeyPatch, decay: str, delta: bool, dtype: torch.dtype, width: int
) -> None:
    if dtype == torch.float32:
        monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    for kernel in kernels_for(decay, delta, dtype, width):
        worst = max_errors(kernel, decay, delta, dtype=dtype, width=width)
        assert max(worst.values()) <= MAX_ERROR[dtype], (kernel.name, worst)


def test_auto_runs_fla_and_records_the_kernel() -> None:
    x = torch.randn(1, 64, 2, 64, device="cuda", dtype=torch.bfloat16)
    set_backend("auto")
    recurrence(x, x, x, log_decay=torch.tensor([-0.1, -0.2], device="cuda"), scale=0.1)
    assert list(last_kernels().items())[-1] == ("head decay, additive", "chunk_simple_gla")


@pytest.mark.parametrize("packed", [False, True])
def test_short_convolution(packed: bool) -> None:
    torch.manual_seed(0)
    weight = torch.randn(192, 4, device="cuda").requires_grad_()
    x = torch.randn(1, 300, 192, device="cuda").requires_grad_()
    bounds = torch.tensor([0, 2, 100, 300], device="cuda") if packed else None
    d_y = torch.randn(1, 300, 192, device="cuda")
    found = {}
    for backend in ("torch", "fla"):
        set_backend(backend)
        y, last = convolve(x, weight, 128, None, None, bounds)
        found[backend] = (y, last, *torch.autograd.grad((y * d_y).sum(), (x, weight)))
    set_backend("auto")
    for actual, wanted in zip(found["fla"], found["torch"], strict=True):
        assert (actual - wanted).norm() <= 1e-4 * wanted.norm()
