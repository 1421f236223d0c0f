"""Projections of one input are one product, and the layers remain what they are."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from evalsuite.models.inference.torch.joined_projections import JoinedLinear, join
from evalsuite.models.ops.gates import PerHeadLinear, project_together


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k = nn.Linear(12, 20, bias=False), nn.Linear(12, 8, bias=False)
        self.a, self.b = PerHeadLinear(12, 5), PerHeadLinear(12, 5, bias=False)
        self.v = nn.Linear(12, 8)

    def run(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [self.q(x), self.k(x), *project_together([self.a, self.b], x), self.v(x)]


def joined() -> Any:
    layers = Layers()
    join(layers, list(layers.children()))
    return layers


def test_outputs_are_those_of_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, layers = Layers(), joined()
    assert [type(each) is JoinedLinear for each in layers.children()] == [True, True, False, False, False]
    x, y = torch.randn(2, 3, 4, 12)
    products: list[Any] = []
    right = torch.nn.functional.linear
    with torch.no_grad():
        expected = {id(given): plain.run(given) for given in (x, y)}
        monkeypatch.setattr(
            "torch.nn.functional.linear", lambda *given: products.append(given) or right(*given)
        )
        # Of two inputs in turn, and of one input twice.
        for given in (x, y, x, x):
            for mine, other in zip(layers.run(given), expected[id(given)], strict=True):
                torch.testing.assert_close(mine, other)
    # The joint one, and that of the layer with a bias.
    assert len(products) == 8


def test_parameters_stay_what_they_are() -> None:
    plain, layers = Layers(), joined()
    assert list(layers.state_dict()) == list(plain.state_dict())
    for name, value in plain.state_dict().items():
        assert torch.equal(layers.state_dict()[name], value)


def test_weights_are_shared_and_may_change() -> None:
    plain, layers = Layers(), joined()
    x = torch.randn(2, 12)
    with torch.no_grad():
        for each in (plain, layers):
            each.k.weight.mul_(2)
        torch.testing.assert_close(layers.run(x), plain.run(x))
        # Replaced, as by moving a model: all compute their own.
        for each in (plain, layers):
            each.q.weight.data = each.q.weight * 3
        torch.testing.assert_close(layers.run(x), plain.run(x))
        torch.testing.assert_close(copy.deepcopy(layers).run(x), plain.run(x))


def test_gradients_are_those_of_the_layers() -> None:
    plain: Any = Layers()
    layers = joined()
    x = torch.randn(2, 12)
    for each in (plain, layers):
        (each.q(x).sum() + each.k(x).square().sum()).backward()
    assert torch.equal(layers.q.weight.grad, plain.q.weight.grad)
    assert torch.equal(layers.k.weight.grad, plain.k.weight.grad)
