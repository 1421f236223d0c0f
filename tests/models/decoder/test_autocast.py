"""Students trained by others: fp32 weights under autocast, on a CPU and on the kernels of a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from evalsuite.models import build_student
from evalsuite.models.mixers import MIXERS

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")],
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mixer", sorted(MIXERS))
def test_gradients_under_autocast_are_those_of_fp32(
    make_teacher: Callable[..., Any], mixer: str, device: str
) -> None:
    teacher = make_teacher(initializer_range=0.05, hidden_size=64, head_dim=64)
    student = build_student(teacher, mixer).to(device).train()
    ids = torch.randint(0, 61, (2, 70), generator=torch.Generator().manual_seed(0)).to(device)

    def gradients(enabled: bool) -> torch.Tensor:
        student.zero_grad()
        with torch.autocast(device, torch.bfloat16, enabled=enabled):
            logits = student(input_ids=ids).logits
        functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten()).backward()
        found = [parameter.grad for parameter in student.parameters() if parameter.grad is not None]
        assert all(gradient.dtype == torch.float32 for gradient in found)
        return torch.cat([gradient.flatten() for gradient in found])

    exact, found = gradients(False), gradients(True)
    # ReBased divides by sums of squares that start near zero.
    assert (found - exact).norm() < (0.5 if mixer == "rebased" else 0.05) * exact.norm()
