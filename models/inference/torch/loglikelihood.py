"""Log-likelihoods of continuations: each context is prefilled once, its cache branches per continuation."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from torch import Tensor

from evalsuite.models.inference.logprobs import (
    Part,
    TargetIndex,
    number_continuations,
    sum_responses,
    target_logprobs,
)
from evalsuite.models.inference.requests import ScoreRequest, ScoreResponse
from evalsuite.models.inference.torch.batch_limits import BatchLimits
from evalsuite.models.inference.torch.batching import make_length_batches
from evalsuite.models.inference.torch.kv_cache import KVCache
from evalsuite.models.inference.torch.model_runner import ModelRunner
from evalsuite.models.inference.torch.prefix_groups import group_by_prefix


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
    indices: Sequence[int],
    completed: Collection[int],
    make: Callable[[Sequence[int]], list[RequestBatch]],
) -> list[RequestBatch]:
    """Batches of `make(indices)` without completed requests, as an uninterrupted run has them if possible.

    The rounding of a response depends on its batch. An interrupted run has stored complete batches and
    possibly a partial one, which is recomputed in full. If many batches are partial, the stored responses
    come from another set of requests, and the missing ones are batched anew.
    """
    batches = make(indices)
    if not completed:
        return batches
    remaining = [batch for batch in batches if any(index not in completed for index in batch.indices)]
    num_partial = sum(any(index in completed for index in batch.indices) for batch in remaining)
    if num_partial <= MAX_PARTIAL_BATCHES:
        return remaining
    return make([index for index in indices if index not in completed])


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
        self._parts: list[Part] = []
        self._runner, self._limits = runner, limits
        self._slots = number_continuations(requests)
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
        flat, head = hidden.flatten(0, 1), self._runner.lm_head
        max_rows = max(1, self._limits.max_logits // self._runner.vocab_size)
        found = target_logprobs(head, flat, targets.row, targets.token, max_rows)
        self._parts.append((targets.slot, *found))

    def responses(self) -> list[ScoreResponse]:
        """One response per request; an error where a log-probability is not finite."""
        return sum_responses(self.requests, self._parts)
