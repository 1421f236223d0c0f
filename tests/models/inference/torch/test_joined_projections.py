"""Projections of one input are one product, and the layers remain what they are."""

from typing import Any

import pytest
import torch
from torch import nn

from evalsuite.models.inference.torch.fusion.projections import JoinedProjections
from evalsuite.models.ops.gates.per_head_linear import PerHeadLinear, project_together


def some_layers() -> list[nn.Linear]:
    torch.manual_seed(0)
    return [
        nn.Linear(12, 20, bias=False),
        nn.Linear(12, 8, bias=False),
        PerHeadLinear(12, 5),
        PerHeadLinear(12, 5, bias=False),
    ]


def test_outputs_are_those_of_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = some_layers()
    x, y = torch.randn(2, 3, 4, 12)
    with torch.no_grad():
        expected = {
            id(given): [layers[0](given), layers[1](given), *project_together(layers[2:], given)]
            for given in (x, y)
        }
        joined = JoinedProjections([layers])
        products: list[Any] = []
        right = torch.nn.functional.linear
        monkeypatch.setattr(
            "torch.nn.functional.linear", lambda *given: products.append(given) or right(*given)
        )
        with joined.enabled():
            # Of two inputs in turn, and of one input twice.
            for given in (x, y, x, x):
                found = [layers[0](given), layers[1](given), *project_together(layers[2:], given)]
                for mine, other in zip(found, expected[id(given)], strict=True):
                    torch.testing.assert_close(mine, other)
        assert len(products) == 4
        assert layers[0](x).shape == (3, 4, 20)
        assert len(products) == 5


def test_weights_are_shared_and_may_change() -> None:
    layers = some_layers()[:2]
    before = [layer.weight.clone() for layer in layers]
    joined = JoinedProjections([layers])
    x = torch.randn(2, 12)
    assert all(torch.equal(layer.weight, old) for layer, old in zip(layers, before, strict=True))
    with torch.no_grad():
        layers[1].weight.mul_(2)
        with joined.enabled():
            torch.testing.assert_close(layers[1](x), 2 * x @ before[1].T)
        # Replaced, as by moving a model: the others still compute their own.
        layers[0].weight.data = layers[0].weight * 3
        with joined.enabled():
            assert "forward" not in layers[0].__dict__
            torch.testing.assert_close(layers[0](x), 3 * x @ before[0].T)


def test_layers_are_restored_when_a_pass_fails() -> None:
    layers = some_layers()
    joined = JoinedProjections([layers, layers[:1]])
    with pytest.raises(RuntimeError, match="shapes"), joined.enabled():
        layers[0](torch.ones(2, 13))
    assert not any({"forward", "joined"} & set(layer.__dict__) for layer in layers)
