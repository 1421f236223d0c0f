"""Log-likelihoods of continuations: each context is prefilled once, its cache branches per continuation."""

from collections.abc import Iterable, Iterator, Sequence

from evalsuite.models.inference.batch_limits import BatchLimits
from evalsuite.models.inference.batching import RequestBatch, make_length_batches
from evalsuite.models.inference.logprobs import ScoredBatch, TargetIndex
from evalsuite.models.inference.requests import ScoreRequest
from evalsuite.models.inference.torch.kv_cache import KVCache
from evalsuite.models.inference.torch.model_runner import ModelRunner
from evalsuite.models.inference.torch.prefix_groups import common_prefix_length, group_by_prefix


def make_batches(
    requests: Sequence[ScoreRequest], indices: Sequence[int], limits: BatchLimits, min_saved: int = 0
) -> list[RequestBatch]:
    """Batch requests, those with a common prefix together and the largest batches first.

    Args:
        requests: of which those of `indices` are batched.
        indices: of requests; those with one context are read as one row.
        limits: maximum number of tokens.
        min_saved: see `group_by_prefix`.
    """
    found: list[tuple[int, RequestBatch]] = []
    for num_shared, rows in _group_rows(requests, indices, min_saved):
        costs = [_num_tokens([requests[index] for index in row], num_shared) for row in rows]
        own = [cost[0] for cost in costs]
        # Shared tokens cost only the copy of their keys and values, about a quarter of a token's memory.
        extra = [num_shared // 4 + cost[1] for cost in costs]
        for batch in make_length_batches(
            own, max_tokens=limits.max_tokens, min_tokens=limits.min_tokens, unpadded_tokens=extra
        ):
            tokens = num_shared + max(own[place] for place in batch) * len(batch)
            found.append(
                (tokens, RequestBatch([index for place in batch for index in rows[place]], num_shared))
            )
    return [batch for _, batch in sorted(found, key=lambda pair: -pair[0])]


def tokens_read(requests: Sequence[ScoreRequest], min_saved: int = 0) -> int:
    """Tokens that are read for these requests, in the batches of `make_batches`, pads aside."""
    return sum(
        num_shared + sum(sum(_num_tokens([requests[index] for index in row], num_shared)) for row in rows)
        for num_shared, rows in _group_rows(requests, range(len(requests)), min_saved)
    )


def _group_rows(
    requests: Sequence[ScoreRequest], indices: Iterable[int], min_saved: int
) -> Iterator[tuple[int, list[list[int]]]]:
    """Yield the length of a common prefix and the rows that start with it: indices of equal contexts."""
    rows: dict[tuple[int, ...], list[int]] = {}
    for index in indices:
        rows.setdefault(requests[index].context, []).append(index)
    contexts = list(rows)
    for num_shared, group in group_by_prefix(contexts, min_saved):
        yield num_shared, [rows[contexts[place]] for place in group]


def _num_tokens(requests: Sequence[ScoreRequest], num_shared: int) -> tuple[int, int]:
    """Tokens of the row of requests with one context after a shared prefix, and of its branches."""
    common = len(_common_start(requests))
    branches = sum(
        max(0, len(tokens) - 1 - common) for request in requests for tokens in request.continuations
    )
    return len(requests[0].context) - num_shared + common, branches


def _common_start(requests: Sequence[ScoreRequest]) -> tuple[int, ...]:
    """Tokens that all continuations read first, those of one token aside, which read none.

    All but the last token of a single continuation; of answer letters, often the space before the letter.
    """
    read = [tokens for request in requests for tokens in request.continuations if len(tokens) > 1]
    # Of most, not even the first.
    if len({tokens[0] for tokens in read}) != 1:
        return ()
    return read[0][: common_prefix_length([tokens[:-1] for tokens in read])]


class LoglikelihoodBatch(ScoredBatch):
    """A batch whose computation is started on construction; `responses` waits for it.

    A context and what all its continuations start with are one row, also if several requests have it, from
    whose cache every continuation that has more to read branches. A single continuation, one-token
    continuations, and those that differ in their last token alone cost nothing beyond that row. Where states
    are rounded, every continuation branches from its context's.

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
        super().__init__(requests, runner.vocab_size, limits)
        self._runner, self._num_shared = runner, num_shared
        same: dict[tuple[int, ...], list[ScoreRequest]] = {}
        for request in requests:
            same.setdefault(request.context, []).append(request)
        number = {context: row for row, context in enumerate(same)}
        self._row = [number[request.context] for request in requests]
        """Row of each request's context."""
        self._contexts = list(same)
        self._starts = [() if runner.rounds_states else _common_start(each) for each in same.values()]
        """By row."""
        branches, cache = self._run_contexts()
        if cache is not None:
            self._run_continuations(branches, cache)

    def _run_contexts(self) -> tuple[list[tuple[int, int]], KVCache | None]:
        """Prefill the contexts; return the continuations that branch from them, and the cache."""
        rows = [
            context[self._num_shared :] + start
            for context, start in zip(self._contexts, self._starts, strict=True)
        ]
        branches = [
            (i, j)
            for i, request in enumerate(self.requests)
            for j, tokens in enumerate(request.continuations)
            if len(tokens) - 1 > len(self._starts[self._row[i]])
        ]
        parent = None
        if self._num_shared:
            _, parent = self._runner.prefill([self._contexts[0][: self._num_shared]], keep=True)
        hidden, cache = self._runner.prefill(
            rows, parent=parent, parent_rows=[0] * len(rows), keep=bool(branches)
        )
        targets = TargetIndex()
        for i, request in enumerate(self.requests):
            row = self._row[i]
            last = row * hidden.shape[1] + len(request.context) - self._num_shared - 1
            count = len(self._starts[row]) + 1
            targets.add(last, [tokens[:count] for tokens in request.continuations], self._slots[i])
        self._score(self._runner.head.logits, hidden, targets)
        return branches, cache

    def _run_continuations(self, branches: Sequence[tuple[int, int]], cache: KVCache) -> None:
        rests = [self.requests[i].continuations[j][len(self._starts[self._row[i]]) :] for i, j in branches]
        for batch in make_length_batches(
            [len(rest) - 1 for rest in rests],
            max_tokens=self._limits.max_tokens,
            min_tokens=self._limits.min_tokens,
        ):
            rows = [rests[number][:-1] for number in batch]
            hidden, _ = self._runner.prefill(
                rows, parent=cache, parent_rows=[self._row[branches[number][0]] for number in batch]
            )
            targets = TargetIndex(
                first=[place * hidden.shape[1] for place in range(len(batch))],
                tokens=[rests[number][1:] for number in batch],
                slot=[self._slots[i] + j for i, j in map(branches.__getitem__, batch)],
            )
            self._score(self._runner.head.logits, hidden, targets)
