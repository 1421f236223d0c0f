"""Log-likelihoods of continuations: each context is prefilled once, its cache branches per continuation."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from evalsuite.models.inference.requests import ScoreRequest, ScoreResponse
from evalsuite.models.inference.torch.batch_limits import BatchLimits
from evalsuite.models.inference.torch.batching import make_length_batches
from evalsuite.models.inference.torch.kv_cache import KVCache, to_device
from evalsuite.models.inference.torch.model_runner import ModelRunner
from evalsuite.models.inference.torch.prefix_groups import group_by_prefix

NON_FINITE_LOGPROBS = "the model's log-probabilities are not finite (NaN or infinity in its logits)"


@dataclass(slots=True)
class TargetIndex:
    """Tokens to score: `token[i]` after hidden state `row[i]`, summed into entry `slot[i]`."""

    row: list[int] = field(default_factory=list)
    token: list[int] = field(default_factory=list)
    slot: list[int] = field(default_factory=list)

    def add(self, rows: Sequence[int], tokens: Sequence[int], slot: int) -> None:
        self.row.extend(rows)
        self.token.extend(tokens)
        self.slot.extend([slot] * len(tokens))


@dataclass(frozen=True, slots=True)
class RequestBatch:
    """Indices of requests that run together; all contexts start with the same `num_shared` tokens."""

    indices: list[int]
    num_shared: int = 0

    def halves(self) -> "list[RequestBatch]":
        """Split the batch in two."""
        half = len(self.indices) // 2
        return [
            RequestBatch(self.indices[:half], self.num_shared),
            RequestBatch(self.indices[half:], self.num_shared),
        ]


MAX_PARTIAL_BATCHES = 2
"""Number of partially stored batches up to which a resumed run is assumed to have been interrupted."""


def make_remaining_batches(
    requests: Sequence[ScoreRequest],
    indices: Sequence[int],
    completed: Collection[int],
    limits: BatchLimits,
) -> list[RequestBatch]:
    """`make_batches` without the completed requests, reproducing an uninterrupted run's batches if possible.

    The rounding of a response depends on its batch. An interrupted run has stored complete batches and
    possibly a partial one, which is recomputed in full. If many batches are partial, the stored responses
    come from another set of requests, and the missing ones are batched anew.
    """
    batches = make_batches(requests, indices, limits)
    if not completed:
        return batches
    remaining = [batch for batch in batches if any(index not in completed for index in batch.indices)]
    num_partial = sum(any(index in completed for index in batch.indices) for batch in remaining)
    if num_partial <= MAX_PARTIAL_BATCHES:
        return remaining
    return make_batches(requests, [index for index in indices if index not in completed], limits)


def make_batches(
    requests: Sequence[ScoreRequest], indices: Sequence[int], limits: BatchLimits
) -> list[RequestBatch]:
    """Batch requests, those with a common prefix together and the largest batches first."""
    found: list[tuple[int, RequestBatch]] = []
    for num_shared, group in group_by_prefix([requests[index].context for index in indices]):
        members = [indices[place] for place in group]
        costs = [_num_tokens(requests[index], num_shared) for index in members]
        own, extra = [cost[0] for cost in costs], [cost[1] for cost in costs]
        for batch in make_length_batches(
            own, max_tokens=limits.max_tokens, min_tokens=limits.min_tokens, unpadded_tokens=extra
        ):
            tokens = num_shared + max(own[place] for place in batch) * len(batch)
            found.append((tokens, RequestBatch([members[place] for place in batch], num_shared)))
    return [batch for _, batch in sorted(found, key=lambda pair: -pair[0])]


def _num_tokens(request: ScoreRequest, num_shared: int) -> tuple[int, int]:
    """Tokens of the request's own row, and of its branches and its copy of the shared prefix."""
    own = len(request.context) - num_shared
    # Shared tokens cost only the copy of their keys and values, about a quarter of a token's memory.
    copied = num_shared // 4
    if len(request.continuations) == 1:
        return own + len(request.continuations[0]) - 1, copied
    return own, copied + sum(len(tokens) - 1 for tokens in request.continuations)


class LoglikelihoodBatch:
    """A batch whose computation is started on construction; `responses` waits for it.

    A request with one continuation is one row of context and continuation together; otherwise the context is
    a row and every continuation of two or more tokens branches from its cache. The first token of each
    continuation is scored by the context's last hidden state, so that one-token continuations cost nothing
    beyond the context.

    Args:
        runner: the model.
        requests: each with a non-empty context and non-empty continuations.
        limits: maximum number of continuation tokens and logits at once.
        num_shared: length of the common prefix of all contexts, less than the shortest context; it is
            prefilled once.
    """

    def __init__(
        self,
        runner: ModelRunner,
        requests: Sequence[ScoreRequest],
        limits: BatchLimits,
        num_shared: int = 0,
    ) -> None:
        self.requests, self._num_shared = requests, num_shared
        self._parts: list[tuple[list[int], Tensor, Tensor]] = []
        self._runner, self._limits = runner, limits
        first = 0
        self._slots: list[int] = []
        for request in requests:
            self._slots.append(first)
            first += len(request.continuations)
        self._num_slots = first
        branches, cache = self._run_contexts()
        if cache is not None:
            self._run_continuations(branches, cache)

    def _run_contexts(self) -> tuple[list[tuple[int, int]], KVCache | None]:
        """Prefill the contexts; return the continuations that branch from them, and the cache."""
        rows: list[tuple[int, ...]] = []
        branches: list[tuple[int, int]] = []
        for i, request in enumerate(self.requests):
            own = request.context[self._num_shared :]
            if len(request.continuations) == 1:
                rows.append(own + request.continuations[0][:-1])
            else:
                rows.append(own)
                branches += [(i, j) for j, tokens in enumerate(request.continuations) if len(tokens) > 1]
        parent = None
        if self._num_shared:
            _, parent = self._runner.prefill([self.requests[0].context[: self._num_shared]], keep=True)
        hidden, cache = self._runner.prefill(
            rows, parent=parent, parent_rows=[0] * len(rows), keep=bool(branches)
        )
        targets = TargetIndex()
        for i, request in enumerate(self.requests):
            last = i * hidden.shape[1] + len(request.context) - self._num_shared - 1
            if len(request.continuations) == 1:
                tokens = request.continuations[0]
                targets.add(range(last, last + len(tokens)), tokens, self._slots[i])
            else:
                for j, tokens in enumerate(request.continuations):
                    targets.add([last], tokens[:1], self._slots[i] + j)
        self._score(hidden, targets)
        return branches, cache

    def _run_continuations(self, branches: Sequence[tuple[int, int]], cache: KVCache) -> None:
        lengths = [len(self.requests[i].continuations[j]) - 1 for i, j in branches]
        for batch in make_length_batches(
            lengths, max_tokens=self._limits.max_tokens, min_tokens=self._limits.min_tokens
        ):
            chosen = [branches[number] for number in batch]
            rows = [self.requests[i].continuations[j][:-1] for i, j in chosen]
            hidden, _ = self._runner.prefill(rows, parent=cache, parent_rows=[i for i, _ in chosen])
            targets = TargetIndex()
            for number, (i, j) in enumerate(chosen):
                first = number * hidden.shape[1]
                tokens = self.requests[i].continuations[j][1:]
                targets.add(range(first, first + len(tokens)), tokens, self._slots[i] + j)
            self._score(hidden, targets)

    def _score(self, hidden: Tensor, targets: TargetIndex) -> None:
        flat = hidden.flatten(0, 1)
        found = target_logprobs(self._runner, flat, targets.row, targets.token, self._limits.max_logits)
        self._parts.append((targets.slot, *found))

    def responses(self) -> list[ScoreResponse]:
        """One response per request; an error where a log-probability is not finite."""
        slot = np.concatenate([np.array(slots) for slots, _, _ in self._parts])
        logprobs = torch.cat([part for _, part, _ in self._parts]).double().cpu().numpy()
        is_argmax = torch.cat([part for _, _, part in self._parts]).cpu().numpy()
        sums = np.bincount(slot, weights=logprobs, minlength=self._num_slots)
        greedy = np.ones(self._num_slots, dtype=bool)
        greedy[slot[~is_argmax]] = False
        responses = []
        for request, start in zip(self.requests, self._slots, strict=True):
            end = start + len(request.continuations)
            if not np.isfinite(sums[start:end]).all():
                responses.append(ScoreResponse.from_error(NON_FINITE_LOGPROBS))
                continue
            lengths = tuple(len(tokens) for tokens in request.continuations)
            responses.append(
                ScoreResponse(tuple(sums[start:end].tolist()), tuple(greedy[start:end].tolist()), lengths)
            )
        return responses


def target_logprobs(
    runner: ModelRunner, hidden: Tensor, rows: Sequence[int], tokens: Sequence[int], max_logits: int
) -> tuple[Tensor, Tensor]:
    """Log-probability of `tokens[i]` after hidden state `rows[i]`, and whether it is the argmax.

    The head runs once per distinct row; log-softmax is in fp32 (lm-eval's HFLM uses the model's dtype).

    Args:
        hidden: [N, width].
        rows: ascending indices of hidden states, one per target; tokens: the target ids.
        max_logits: maximum number of logits (rows × vocabulary) held at once.

    Returns:
        float32 [targets] and bool [targets], on the device.
    """
    distinct, which = np.unique(np.asarray(rows), return_inverse=True)
    selected = hidden.index_select(0, to_device(distinct, hidden.device))
    owner, target = to_device(which, hidden.device), to_device(np.asarray(tokens), hidden.device)
    step = max(1, max_logits // runner.vocab_size)
    logprobs, is_argmax = [], []
    for start in range(0, len(distinct), step):
        chunk = runner.lm_head(selected[start : start + step])
        low, high = np.searchsorted(which, [start, start + step])
        row, token = owner[low:high] - start, target[low:high]
        is_argmax.append(_is_argmax(chunk, row, token))
        logprobs.append(log_softmax(chunk, -1, dtype=torch.float32)[row, token])
    return torch.cat(logprobs), torch.cat(is_argmax)


def _is_argmax(logits: Tensor, row: Tensor, token: Tensor) -> Tensor:
    if logits.is_cuda:
        return logits.argmax(-1)[row] == token
    # On a CPU argmax is several times slower than amax. Few targets reach the maximum, and among ties only
    # the first is the argmax.
    best = logits[row, token] == logits.amax(-1)[row]
    top = best.nonzero()[:, 0]
    best[top] = logits[row[top]].argmax(-1) == token[top]
    return best
