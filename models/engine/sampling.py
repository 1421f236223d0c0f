"""How the next token is chosen. A row's draw depends on its seed and step alone, never on the batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from evalsuite.models.engine.requests import GenerateRequest

_MASK64 = (1 << 64) - 1


def _mix(value: int) -> int:
    """splitmix64's finaliser on one unsigned 64-bit integer (Steele, Lea and Flood 2014)."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK64
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    """The same 64 bits as a signed integer, which is what torch has."""
    return value - (1 << 64) if value >> 63 else value


def stream(seed: int) -> int:
    """Start of a row's random stream; neighbouring seeds start far apart. Signed 64-bit."""
    return _signed(_mix((seed + 0x9E3779B97F4A7C15) & _MASK64))


def uniforms(streams: Tensor, steps: Tensor) -> Tensor:
    """Draw number `steps[i]` of stream `streams[i]`: float64 in [0, 1), the same on every device.

    splitmix64 as a counter-based generator; torch's int64 wraps as unsigned arithmetic does, and its
    right shift is arithmetic, so that the sign bits are masked off.
    """
    z = streams + (steps + 1) * _signed(0x9E3779B97F4A7C15)
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB)
    z = z ^ ((z >> 31) & ((1 << 33) - 1))
    return ((z >> 11) & ((1 << 53) - 1)).double() * 2.0**-53


@dataclass(slots=True)
class Choice:
    """How each of R rows chooses: tensors [R], and what at least one of them needs."""

    temperature: Tensor
    top_p: Tensor
    top_k: Tensor
    streams: Tensor
    samples: bool
    filters: bool

    @staticmethod
    def greedy(rows: int, requests: Sequence[GenerateRequest], device: torch.device) -> "Choice":
        """Greedy rows, ready to be overwritten by the choices of any of `requests`."""
        needs = Choice.of(requests, device)
        return Choice(
            torch.zeros(rows, device=device),
            torch.ones(rows, dtype=torch.float64, device=device),
            torch.zeros(rows, dtype=torch.long, device=device),
            torch.zeros(rows, dtype=torch.long, device=device),
            needs.samples,
            needs.filters,
        )

    @staticmethod
    def of(requests: Sequence[GenerateRequest], device: torch.device) -> "Choice":
        """Gather the sampling of `requests`, one row each."""
        all_of = [request.sampling for request in requests]
        return Choice(
            torch.tensor([s.temperature for s in all_of], device=device),
            torch.tensor([s.top_p for s in all_of], dtype=torch.float64, device=device),
            torch.tensor([s.top_k for s in all_of], device=device),
            torch.tensor([stream(request.seed) for request in requests], device=device),
            any(not s.greedy for s in all_of),
            any(not s.greedy and (s.top_p < 1 or s.top_k > 0) for s in all_of),
        )

    def first(self, rows: int) -> "Choice":
        """Views of the first `rows` rows."""
        return Choice(
            self.temperature[:rows],
            self.top_p[:rows],
            self.top_k[:rows],
            self.streams[:rows],
            self.samples,
            self.filters,
        )


def choose(logits: Tensor, choice: Choice, steps: Tensor) -> tuple[Tensor, Tensor]:
    """Choose the next token of each row.

    Args:
        logits: [R, V] in any floating dtype.
        choice: how each row chooses.
        steps: int64 [R], number of the token within its row's answer; it counts the random draws.

    Returns:
        Tokens int64 [R], and bool [R]: whether the row's logits were not finite.
    """
    best = logits.argmax(-1)
    broken = ~logits.gather(1, best[:, None])[:, 0].isfinite()
    if not choice.samples:
        return best, broken
    greedy = choice.temperature == 0
    scaled = logits.float() / torch.where(greedy, 1.0, choice.temperature)[:, None]
    if choice.filters:
        scaled = scaled.masked_fill(~_kept(scaled, choice), -torch.inf)
    sampled = _inverse(scaled.softmax(-1), uniforms(choice.streams, steps))
    return torch.where(greedy, best, sampled), broken


def _kept(scaled: Tensor, choice: Choice) -> Tensor:
    """Which tokens top-k, then top-p over what top-k left, keep: bool [R, V] (transformers' definitions)."""
    logits, order = scaled.sort(-1, descending=True)
    last = (choice.top_k - 1).clamp(0, logits.shape[1] - 1)[:, None]
    # As in transformers, tokens tied with the k-th stay.
    dropped = (logits < logits.gather(1, last)) & (choice.top_k > 0)[:, None]
    probabilities = logits.masked_fill(dropped, -torch.inf).softmax(-1)
    before = probabilities.cumsum(-1, dtype=torch.float64) - probabilities
    # transformers drops a token when it and all less likely ones weigh at most 1 - p, that is, when the
    # more likely ones already weigh p. The most likely token always stays.
    kept = (before < choice.top_p[:, None]) | (choice.top_p[:, None] >= 1)
    kept[:, 0] = True
    return torch.zeros_like(kept).scatter_(1, order, kept & ~dropped)


def _inverse(weights: Tensor, draw: Tensor) -> Tensor:
    """Index whose cumulative weight first exceeds `draw` times the sum; never one of zero weight."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # Rounding may lift the target to the sum, which nothing exceeds.
    target = torch.minimum(draw[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, target, right=True)
    # Without this, a row of NaN would point past the end.
    return index.clamp_(max=weights.shape[1] - 1)[:, 0]
