"""The divergence of what a server returns of its distributions bounds the whole one from below."""

import itertools
import math

import pytest
import torch

from evalsuite.models.diagnostics.served import lumped_kl


def distributions(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    first, second = torch.randn(2, 50, dtype=torch.float64) * 2
    return first.log_softmax(0), second.log_softmax(0)


def returned(served: torch.Tensor, count: int) -> dict[int, float]:
    values, ids = served.topk(count)
    return dict(zip(ids.tolist(), values.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(5))
def test_more_returned_tokens_raise_the_bound_to_the_whole_divergence(seed: int) -> None:
    evaluated, served = distributions(seed)
    whole = float((evaluated.exp() * (evaluated - served)).sum())
    bounds = [lumped_kl(evaluated, returned(served, count)) for count in range(1, 51)]
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(bounds))
    assert bounds[0] < 0.9 * whole
    assert bounds[-1] == pytest.approx(whole, rel=1e-6)


def test_a_bound_by_hand() -> None:
    evaluated = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    expected = 0.3 * math.log(0.3 / 0.6) + 0.7 * math.log(0.7 / 0.4)
    assert lumped_kl(evaluated, {1: math.log(0.6)}) == pytest.approx(expected)
    assert lumped_kl(evaluated, {1: math.log(0.3)}) == pytest.approx(0, abs=1e-12)
    assert lumped_kl(evaluated, {}) == pytest.approx(0, abs=1e-12)


def test_rounding_of_a_server_that_is_certain_stays_finite() -> None:
    """All of the served probability is returned, and a little more."""
    evaluated = torch.tensor([1 - 1e-7, 1e-7], dtype=torch.float64).log()
    assert lumped_kl(evaluated, {0: 6e-8}) == pytest.approx(0, abs=1e-6)
    other = torch.tensor([0.9, 0.1], dtype=torch.float64).log()
    assert lumped_kl(other, {0: 0.0}) == pytest.approx(0.9 * math.log(0.9) + 0.1 * math.log(1e5), abs=1e-6)
