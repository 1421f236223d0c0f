"""Where the tests of Triton kernels run: on a CUDA device, or on a CPU under Triton's interpreter."""

import os
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"

NEEDS_DEVICE = [
    pytest.mark.gpu,
    pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="no CUDA device"),
]
"""The `pytestmark` of these modules (see test_interpreter.py)."""


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def compare(fast: Callable, exact: Callable, *leaves: Tensor) -> None:
    """Outputs and gradients of two functions of the same leaves: fp32 against float64."""
    found = []
    for function, dtype in ((fast, torch.float32), (exact, torch.float64)):
        own = [leaf.to(dtype, copy=True).requires_grad_() for leaf in leaves]
        outputs: Sequence[Tensor] = function(*own)
        torch.manual_seed(0)
        # By shape: randn_like would draw a transposed output's weights in another order.
        sum((out * torch.randn(out.shape, device=DEVICE)).sum() for out in outputs).backward()
        found.append([*(out.detach().double() for out in outputs), *(leaf.grad.double() for leaf in own)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
