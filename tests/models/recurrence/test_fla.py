"""On a GPU: fla's kernels against the torch backend, outputs and every gradient."""

import math
from typing import Any

import pytest
import torch

from evalsuite.models.mixers.convolution import ShortConvolution
from evalsuite.models.recurrence import kernels_used, recurrence, set_backend
from evalsuite.models.recurrence.agreement import BOUND, SETTINGS, kernels_of, worst_errors

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)


@pytest.fixture(autouse=True)
def first_variant_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which variant of a kernel is fastest does not matter here, and compiling all of them takes minutes.

    The comparison with tuned kernels is `python -m evalsuite.models.recurrence.agreement`.
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
def test_fla_is_torch(
    monkeypatch: pytest.MonkeyPatch, decay: str, delta: bool, dtype: torch.dtype, width: int
) -> None:
    if dtype == torch.float32:
        monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)
    for kernel in kernels_of(decay, delta, dtype, width):
        worst = worst_errors(kernel, decay, delta, dtype=dtype, width=width)
        assert max(worst.values()) <= BOUND[dtype], (kernel.name, worst)


def test_auto_runs_fla_and_names_the_kernel() -> None:
    x = torch.randn(1, 64, 2, 64, device="cuda", dtype=torch.bfloat16)
    set_backend("auto")
    recurrence(x, x, x, log_decay=torch.tensor([-0.1, -0.2], device="cuda"), scale=0.1)
    assert list(kernels_used().items())[-1] == ("head decay, additive", "chunk_simple_gla")


@pytest.mark.parametrize("packed", [False, True])
def test_short_convolution(packed: bool) -> None:
    torch.manual_seed(0)
    conv = ShortConvolution(192, 4, 128).cuda()
    torch.nn.init.normal_(conv.weight)
    x = torch.randn(1, 300, 192, device="cuda").requires_grad_()
    bounds = torch.tensor([0, 2, 100, 300], device="cuda") if packed else None
    weight = torch.randn(1, 300, 192, device="cuda")
    found = {}
    for backend in ("torch", "fla"):
        set_backend(backend)
        y, tail = conv(x, None, None, bounds)
        found[backend] = (y, tail, *torch.autograd.grad((y * weight).sum(), (x, conv.weight)))
    set_backend("auto")
    for mine, wanted in zip(found["fla"], found["torch"], strict=True):
        assert (mine - wanted).norm() <= 1e-4 * wanted.norm()
