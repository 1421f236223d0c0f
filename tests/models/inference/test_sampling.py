"""Sampling follows transformers' logits processors and depends only on seed and step."""

import pytest
import torch
from scipy.stats import chisquare, kstest
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from evalsuite.foundation import ConfigError
from evalsuite.models.inference.requests import GenerateRequest, SamplingParams
from evalsuite.models.inference.sampling import (
    SamplingMetadata,
    counter_based_uniform,
    sample,
    seed_states,
)

CPU = torch.device("cpu")


def draws(logits: torch.Tensor, sampling: SamplingParams, count: int) -> torch.Tensor:
    """`count` tokens drawn from one row of logits [V], each with its own seed."""
    requests = [GenerateRequest((1,), sampling, seed) for seed in range(count)]
    metadata = SamplingMetadata.from_requests(requests, CPU)
    tokens, non_finite = sample(logits.expand(count, -1), metadata, torch.zeros(count, dtype=torch.long))
    assert not non_finite.any()
    return tokens


def transformers_probabilities(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
    scores = TemperatureLogitsWarper(sampling.temperature)(None, logits[None].clone())
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    return scores.softmax(-1)[0]


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"),
    [
        (1.0, 1.0, 0),
        (0.6, 1.0, 0),
        (1.5, 0.8, 0),
        (0.8, 1.0, 7),
        (1.3, 0.9, 12),
        (1.0, 0.01, 0),
        (2.0, 0.5, 1),
    ],
)
def test_distribution_equals_that_of_transformers(temperature: float, top_p: float, top_k: int) -> None:
    logits = 2 * torch.randn(40, generator=torch.Generator().manual_seed(3))
    sampling = SamplingParams(1, temperature, top_p, top_k)
    expected = transformers_probabilities(logits, sampling).double().numpy()
    counts = torch.bincount(draws(logits, sampling, 20_000), minlength=40).numpy()
    assert counts[expected == 0].sum() == 0
    kept = expected > 0
    if kept.sum() > 1:
        assert chisquare(counts[kept], 20_000 * expected[kept] / expected[kept].sum()).pvalue > 1e-3


def test_tokens_tied_with_the_kth_stay() -> None:
    logits = torch.tensor([3.0, 1.0, 1.0, 1.0, 0.0])
    sampling = SamplingParams(1, 1.0, 1.0, 2)
    assert (transformers_probabilities(logits, sampling) > 0).sum() == 4
    assert set(draws(logits, sampling, 2000).tolist()) == {0, 1, 2, 3}


def test_rows_with_different_parameters_are_independent() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(6, 50, generator=generator)
    samplings = [
        SamplingParams(1),
        SamplingParams(1, 1.0),
        SamplingParams(1, 0.7, 0.9),
        SamplingParams(1, 1.0, 1.0, 5),
        SamplingParams(1),
        SamplingParams(1, 3.0),
    ]
    requests = [GenerateRequest((1,), sampling, 11) for sampling in samplings]
    steps = torch.tensor([0, 3, 1, 4, 1, 5])
    together, _ = sample(logits, SamplingMetadata.from_requests(requests, CPU), steps)
    for row, request in enumerate(requests):
        alone, _ = sample(
            logits[row : row + 1], SamplingMetadata.from_requests([request], CPU), steps[row : row + 1]
        )
        assert together[row] == alone[0]
    assert together[0] == logits[0].argmax()
    assert together[4] == logits[4].argmax()


def test_uniforms_are_uniform_and_independent() -> None:
    count = 4000
    states = seed_states(range(count), CPU)
    first = counter_based_uniform(states, torch.zeros(count, dtype=torch.long))
    second = counter_based_uniform(states, torch.ones(count, dtype=torch.long))
    along = counter_based_uniform(states[:1].expand(count), torch.arange(count))
    for draw in (first, second, along):
        assert kstest(draw.numpy(), "uniform").pvalue > 1e-3
    for a, b in ((first, second), (first[:-1], first[1:]), (along[:-1], along[1:])):
        assert abs(torch.corrcoef(torch.stack([a, b]))[0, 1]) < 0.06


def test_known_values_of_splitmix64() -> None:
    # First outputs of the reference generator for state 1234567 (Vigna, splitmix64.c).
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    got = counter_based_uniform(torch.tensor([1234567] * 3), torch.arange(3))
    assert got.tolist() == [(value >> 11) * 2.0**-53 for value in expected]


def test_a_draw_at_the_edge_has_positive_weight() -> None:
    from evalsuite.models.inference.sampling import _inverse_cdf_sample

    weights = torch.tensor([[0.0, 0.3, 0.0, 0.7, 0.0]])
    edges = [0.0, 0.3 - 1e-12, 0.5, 1 - 2**-53]
    assert [int(_inverse_cdf_sample(weights, torch.tensor([u], dtype=torch.float64))) for u in edges] == [
        1,
        1,
        3,
        3,
    ]


def test_nan_rows_are_reported() -> None:
    logits = torch.zeros(3, 8)
    logits[1, 2] = torch.nan
    requests = [GenerateRequest((1,), SamplingParams(1, 1.0, 0.9), 0)] * 3
    tokens, non_finite = sample(
        logits, SamplingMetadata.from_requests(requests, CPU), torch.zeros(3, dtype=torch.long)
    )
    assert non_finite.tolist() == [False, True, False]
    assert ((tokens >= 0) & (tokens < 8)).all()


@pytest.mark.parametrize(
    "bad",
    [
        {"max_new_tokens": 0},
        {"max_new_tokens": 1, "temperature": -1.0},
        {"max_new_tokens": 1, "temperature": float("nan")},
        {"max_new_tokens": 1, "top_p": 0.0},
        {"max_new_tokens": 1, "top_k": -1},
        {"max_new_tokens": 1, "stop": ("",)},
    ],
)
def test_bad_sampling_is_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        SamplingParams(**bad)  # type: ignore[arg-type]
