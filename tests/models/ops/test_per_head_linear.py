"""Projections to one number per head."""

from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor

from evalsuite.models.ops.gates import PerHeadLinear, project_together


def draw(num_heads: int, bias: bool) -> tuple[PerHeadLinear, Tensor]:
    torch.manual_seed(0)
    return PerHeadLinear(12, num_heads, bias=bias).double(), torch.randn(2, 5, 12).double()


@pytest.mark.parametrize("num_heads", [1, 5, 9, 16, 17])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_padded_rows_do_not_change_a_projection(
    num_heads: int, bias: bool, mode: type[AbstractContextManager[None]]
) -> None:
    linear, x = draw(num_heads, bias)
    expected = linear(x)
    with mode():
        torch.testing.assert_close(linear.forward_padded(x), expected)


def test_padded_rows_have_no_gradient() -> None:
    linear, x = draw(9, True)
    gradients = []
    for forward in (linear.forward, linear.forward_padded):
        linear.zero_grad()
        forward(x).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in linear.parameters()])
    torch.testing.assert_close(*gradients)


def test_a_padded_projection_follows_every_write_to_its_weight() -> None:
    linear, x = draw(9, True)
    with torch.inference_mode():
        linear.forward_padded(x)
    version = linear.weight._version
    linear.weight.data.mul_(2)  # As the calibration broadcasts parameters.
    assert linear.weight._version == version
    with torch.inference_mode():
        torch.testing.assert_close(linear.forward_padded(x), linear(x))


@pytest.mark.parametrize("sizes", [(9, 9), (16, 16), (1, 1), (3, 12, 30)])
def test_projections_together_equal_each_alone(sizes: tuple[int, ...]) -> None:
    layers, x = [draw(size, bias=True)[0] for size in sizes], draw(1, bias=True)[1]
    with torch.inference_mode():
        found = project_together(layers, x)
        for layer, mine in zip(layers, found, strict=True):
            torch.testing.assert_close(mine + layer.bias, layer(x))
