"""fla's kernels against the torch backend on a GPU: outputs and all gradients."""

import pytest
import torch

from evalsuite.models.ops.dispatch import KernelPolicy, kernel_policy
from evalsuite.models.ops.recurrence import last_kernels
from evalsuite.models.ops.short_conv import short_convolutions
from tests.parity.kernel_accuracy import (
    MAX_ERROR,
    SETTINGS,
    exact_float32,
    kernels_for,
    max_errors,
    recurrence,
    relative_error,
)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)


CASES = [(decay, delta) for decay in ("none", "head", "scalar", "channel") for delta in (False, True)]


@pytest.mark.parametrize(("decay", "delta"), CASES)
@pytest.mark.parametrize(("dtype", "width"), SETTINGS, ids=["bf16-32", "bf16-64", "bf16-128", "fp32-64"])
def test_fla_matches_torch(
    monkeypatch: pytest.MonkeyPatch, decay: str, delta: bool, dtype: torch.dtype, width: int
) -> None:
    exact_float32(monkeypatch)
    for kernel in kernels_for(decay, delta, dtype):
        worst = max_errors(kernel, decay, delta, dtype=dtype, width=width)
        assert max(worst.values()) <= MAX_ERROR[dtype], (kernel.name, worst)


def test_auto_runs_fla_and_records_the_kernel() -> None:
    x = torch.randn(1, 64, 2, 64, device="cuda", dtype=torch.bfloat16)
    recurrence(x, x, x, log_decay=torch.tensor([-0.1, -0.2], device="cuda"), scale=0.1)
    assert list(last_kernels().items())[-1] == ("head decay, additive", "chunk_simple_gla")


@pytest.mark.usefixtures("tuned")
@pytest.mark.parametrize("packed", [False, True])
def test_short_convolution(packed: bool) -> None:
    weight = torch.randn(192, 4, device="cuda").requires_grad_()
    x = torch.randn(1, 300, 192, device="cuda").requires_grad_()
    bounds = torch.tensor([0, 2, 100, 300], device="cuda") if packed else None
    d_y = torch.randn(1, 300, 192, device="cuda")
    found = {}
    policies: tuple[KernelPolicy, ...] = ("torch", "triton")
    for policy in policies:
        with kernel_policy(policy):
            y, last = short_convolutions(
                x.split((128, 64), -1), weight.split((128, 64)), 1, None, None, bounds
            )
            y = torch.cat(list(y), -1)
        d_x, d_weight = torch.autograd.grad((y * d_y).sum(), (x, weight))
        found[policy] = {"y": y, "last": last, "dx": d_x, "dweight": d_weight}
    errors = {name: relative_error(found["triton"][name], x) for name, x in found["torch"].items()}
    assert max(errors.values()) <= 1e-4, errors
