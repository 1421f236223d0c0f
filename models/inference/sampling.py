"""Token sampling. Draws depend only on a request's seed and the step, never on the batch."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from evalsuite.models.inference.batching import to_device
from evalsuite.models.inference.requests import GenerateRequest


def _signed(value: int) -> int:
    """The lowest 64 bits as a signed integer, torch's only 64-bit integer type."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


_STEP = _signed(0x9E3779B97F4A7C15)


def _mix(z: Tensor) -> Tensor:
    """splitmix64's finaliser (Steele, Lea and Flood 2014).

    torch's int64 wraps like unsigned arithmetic, and its right shift is arithmetic, so that the sign bits are
    masked off.
    """
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB)
    return z ^ ((z >> 31) & ((1 << 33) - 1))


def seed_states(seeds: Iterable[int], device: torch.device) -> Tensor:
    """Initial generator states int64 [seeds]; adjacent seeds give distant states."""
    states = _mix(torch.tensor([_signed(seed) for seed in seeds], dtype=torch.long) + _STEP)
    return to_device(states.numpy(), device)


def counter_based_uniform(states: Tensor, steps: Tensor) -> Tensor:
    """Draw number `steps[i]` of generator `states[i]`: float64 in [0, 1), equal on every device."""
    z = _mix(states + (steps + 1) * _STEP)
    return ((z >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


@dataclass(slots=True)
class SamplingMetadata:
    """Sampling parameters of R sequences as tensors [R], and which operations at least one of them needs."""

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    seed_states: Tensor
    any_sampled: bool
    any_filtered: bool

    @staticmethod
    def allocate(
        num_seqs: int, requests: Sequence[GenerateRequest], device: torch.device
    ) -> "SamplingMetadata":
        """Greedy placeholders for `num_seqs` sequences, with the flags that any of `requests` needs."""
        needs = SamplingMetadata.from_requests(requests, device)
        return needs.map(lambda values: values.new_zeros(num_seqs))

    @staticmethod
    def from_requests(requests: Sequence[GenerateRequest], device: torch.device) -> "SamplingMetadata":
        """Collect the sampling parameters of `requests`, one row each."""
        params = [request.sampling for request in requests]
        return SamplingMetadata(
            to_device(np.array([p.temperature for p in params], dtype=np.float32), device),
            to_device(np.array([p.top_p for p in params], dtype=np.float64), device),
            to_device(np.array([p.top_k for p in params], dtype=np.int64), device),
            seed_states((request.seed for request in requests), device),
            any(not p.greedy for p in params),
            any(not p.greedy and (p.top_p < 1 or p.top_k > 0) for p in params),
        )

    def tensors(self) -> list[Tensor]:
        """All parameters."""
        return [self.temperature, self.top_p, self.top_k, self.seed_states]

    def map(self, change: Callable[[Tensor], Tensor]) -> "SamplingMetadata":
        """These parameters with other rows."""
        temperature, top_p, top_k, states = map(change, self.tensors())
        return SamplingMetadata(temperature, top_p, top_k, states, self.any_sampled, self.any_filtered)


def sample(logits: Tensor, metadata: SamplingMetadata, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Sample the next token of each sequence.

    Args:
        logits: [R, V] in any floating dtype.
        metadata: sampling parameters of the sequences.
        steps: int64 [R], index of the token within its response; it counts the random draws.

    Returns:
        Tokens int64 [R], and bool [R]: whether the sequence's logits are not finite.
    """
    best = logits.argmax(-1)
    non_finite = ~logits.gather(1, best[:, None])[:, 0].isfinite()
    if not metadata.any_sampled:
        return best, non_finite
    greedy = metadata.temperature == 0
    scaled = logits.float() / torch.where(greedy, 1.0, metadata.temperature)[:, None]
    if metadata.any_filtered:
        scaled = scaled.masked_fill(~_top_k_top_p_mask(scaled, metadata), -torch.inf)
    uniform = counter_based_uniform(metadata.seed_states, steps)
    sampled = _inverse_cdf_sample(scaled.softmax(-1), uniform)
    return torch.where(greedy, best, sampled), non_finite


def _top_k_top_p_mask(scaled: Tensor, metadata: SamplingMetadata) -> Tensor:
    """Tokens that remain after top-k, then top-p on the rest: bool [R, V] (transformers' definitions)."""
    logits, order = scaled.sort(-1, descending=True)
    last = (metadata.top_k - 1).clamp(0, logits.shape[1] - 1)[:, None]
    # As in transformers, tokens tied with the k-th stay.
    dropped = (logits < logits.gather(1, last)) & (metadata.top_k > 0)[:, None]
    probabilities = logits.masked_fill(dropped, -torch.inf).softmax(-1)
    before = probabilities.cumsum(-1, dtype=torch.float64) - probabilities
    # transformers drops a token if it and all less likely ones have total probability at most 1 - p, that is,
    # if the more likely ones already reach p. The most likely token always stays.
    kept = (before < metadata.top_p[:, None]) | (metadata.top_p[:, None] >= 1)
    kept[:, 0] = True
    return torch.zeros_like(kept).scatter_(1, order, kept & ~dropped)


def _inverse_cdf_sample(weights: Tensor, uniform: Tensor) -> Tensor:
    """Index whose cumulative weight first exceeds `uniform` times the sum; never one of zero weight."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # Rounding may lift the target to the sum, which nothing exceeds.
    target = torch.minimum(uniform[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, target, right=True)
    # A row of NaN would give an index past the end.
    return index.clamp_(max=weights.shape[1] - 1)[:, 0]
