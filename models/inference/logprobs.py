"""Log-likelihood responses from logits: targets are gathered, summed per continuation, and checked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain

import numpy as np
import torch
from torch import Tensor

from evalsuite.models.inference.batch_limits import BatchLimits
from evalsuite.models.inference.batching import to_device
from evalsuite.models.inference.requests import ScoreRequest, ScoreResponse
from evalsuite.models.ops.logprobs import row_logprobs

NON_FINITE_LOGPROBS = "the model's log-probabilities are not finite (NaN or infinity in its logits)"


@dataclass(slots=True)
class TargetIndex:
    """Texts to score: `tokens[i]` after consecutive hidden states from `first[i]` on, summed into entry
    `slot[i]`."""

    first: list[int] = field(default_factory=list)
    tokens: list[Sequence[int]] = field(default_factory=list)
    slot: list[int] = field(default_factory=list)

    def add(self, first_row: int, texts: Sequence[Sequence[int]], slot: int) -> None:
        """Add texts after the same hidden state, for consecutive entries."""
        self.first += [first_row] * len(texts)
        self.tokens += texts
        self.slot += range(slot, slot + len(texts))

    def extend(self, other: "TargetIndex", shift: int) -> None:
        """Add the targets of another index, whose rows start at `shift` here."""
        self.first.extend(row + shift for row in other.first)
        self.tokens.extend(other.tokens)
        self.slot.extend(other.slot)

    def in_order(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Row, token and slot of each target, by rows."""
        lengths = np.fromiter(map(len, self.tokens), np.int64, len(self.tokens))
        ends = lengths.cumsum()
        rows = np.repeat(self.first - ends + lengths, lengths) + np.arange(ends[-1])
        tokens = np.fromiter(chain.from_iterable(self.tokens), np.int64, len(rows))
        order = np.argsort(rows, kind="stable")
        return rows[order], tokens[order], np.repeat(self.slot, lengths)[order]


def target_logprobs(
    head: Callable[[Tensor], Tensor],
    hidden: Tensor,
    rows: Sequence[int] | np.ndarray,
    tokens: Sequence[int] | np.ndarray,
    max_rows: int,
) -> tuple[Tensor, Tensor]:
    """Log-probability of `tokens[i]` after hidden state `rows[i]`, and whether it is the argmax.

    The head runs once per distinct row; log-softmax is in fp32 (lm-eval's HFLM uses the model's dtype). Among
    equal logits the first is the argmax.

    Args:
        head: logits [n, vocabulary] of hidden states [n, width].
        hidden: [N, width].
        rows: ascending indices of hidden states, one per target; tokens: the target ids.
        max_rows: maximum number of rows of logits held at once.

    Returns:
        float32 [targets] and bool [targets], on the device.
    """
    rows = np.asarray(rows)
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    distinct = rows[starts]
    selected = hidden.index_select(0, to_device(distinct, hidden.device))
    target = to_device(np.asarray(tokens), hidden.device)
    bounds = to_device(np.append(starts, len(rows)), hidden.device)
    logprobs = torch.empty(len(tokens), dtype=torch.float32, device=hidden.device)
    is_argmax = torch.empty(len(tokens), dtype=torch.bool, device=hidden.device)
    for start in range(0, len(distinct), max_rows):
        chunk = head(selected[start : start + max_rows])
        row_logprobs(chunk, start, bounds, target, logprobs, is_argmax)
    return logprobs, is_argmax


Part = tuple[np.ndarray, Tensor, Tensor]
"""Scored targets: the continuation of each, its log-probability, and whether it is the argmax."""


def number_continuations(requests: Sequence[ScoreRequest]) -> list[int]:
    """Number of the first continuation of each request, counted over all of them."""
    return list(accumulate((len(request.continuations) for request in requests[:-1]), initial=0))


def sum_responses(requests: Sequence[ScoreRequest], parts: Sequence[Part]) -> list[ScoreResponse]:
    """One response per request; an error where a log-probability is not finite. Waits for the device."""
    slot = np.concatenate([slots for slots, _, _ in parts])
    logprobs = torch.cat([part for _, part, _ in parts]).double().cpu().numpy()
    is_argmax = torch.cat([part for _, _, part in parts]).cpu().numpy()
    firsts = number_continuations(requests)
    num_slots = firsts[-1] + len(requests[-1].continuations)
    sums = np.bincount(slot, weights=logprobs, minlength=num_slots)
    greedy = np.ones(num_slots, dtype=bool)
    greedy[slot[~is_argmax]] = False
    finite = np.logical_and.reduceat(np.isfinite(sums), firsts).tolist()
    values, flags = sums.tolist(), greedy.tolist()
    return [
        ScoreResponse(
            tuple(values[start : start + len(request.continuations)]),
            tuple(flags[start : start + len(request.continuations)]),
            tuple(map(len, request.continuations)),
        )
        if is_finite
        else ScoreResponse.from_error(NON_FINITE_LOGPROBS)
        for request, start, is_finite in zip(requests, firsts, finite, strict=True)
    ]


class ScoredBatch:
    """Log-likelihoods of some requests, whose tokens are scored part by part.

    Args:
        requests: each with a non-empty context and non-empty continuations.
        vocab_size: number of logits of a token.
        limits: maximum number of logits at once.
    """

    def __init__(self, requests: Sequence[ScoreRequest], vocab_size: int, limits: BatchLimits) -> None:
        self.requests, self._limits = requests, limits
        self._slots = number_continuations(requests)
        self._max_rows = max(1, limits.max_logits // vocab_size)
        self._parts: list[Part] = []

    def _score(self, head: Callable[[Tensor], Tensor], hidden: Tensor, targets: TargetIndex) -> None:
        """Score targets after hidden states [R, T, width]."""
        rows, tokens, slots = targets.in_order()
        scored = target_logprobs(head, hidden.flatten(0, 1), rows, tokens, self._max_rows)
        self._parts.append((slots, *scored))

    def responses(self) -> list[ScoreResponse]:
        """One response per request; an error where a log-probability is not finite. Waits for the device."""
        return sum_responses(self.requests, self._parts)
