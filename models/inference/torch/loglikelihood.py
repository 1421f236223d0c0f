"""Log-likelihoods of continuations: each context is prefilled once, its cache branches per continuation."""

from collections.abc import Sequence

from evalsuite.models.inference.batch_limits import BatchLimits
from evalsuite.models.inference.batching import RequestBatch, make_length_batches
from evalsuite.models.inference.logprobs import ScoredBatch, TargetIndex
from evalsuite.models.inference.requests import ScoreRequest
from evalsuite.models.inference.torch.kv_cache import KVCache
from evalsuite.models.inference.torch.model_runner import ModelRunner
from evalsuite.models.inference.torch.prefix_groups import common_prefix_length, group_by_prefix


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
    common = len(common_start(request))
    # Shared tokens cost only the copy of their keys and values, about a quarter of a token's memory.
    branches = sum(max(0, len(tokens) - 1 - common) for tokens in request.continuations)
    return len(request.context) - num_shared + common, num_shared // 4 + branches


def common_start(request: ScoreRequest) -> tuple[int, ...]:
    """Tokens that all continuations read first, those of one token aside, which read none.

    All but the last token of a single continuation; of answer letters, often the space before the letter.
    """
    read = [tokens[:-1] for tokens in request.continuations if len(tokens) > 1]
    return read[0][: common_prefix_length(read)] if read else ()


class LoglikelihoodBatch(ScoredBatch):
    """A batch whose computation is started on construction; `responses` waits for it.

    The context and what all continuations start with are one row, from whose cache every continuation that
    has more to read branches. A single continuation, one-token continuations, and those that differ in their
    last token alone cost nothing beyond that row.

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
        self._starts = [common_start(request) for request in requests]
        branches, cache = self._run_contexts()
        if cache is not None:
            self._run_continuations(branches, cache)

    def _run_contexts(self) -> tuple[list[tuple[int, int]], KVCache | None]:
        """Prefill the contexts; return the continuations that branch from them, and the cache."""
        rows = [
            request.context[self._num_shared :] + self._starts[i] for i, request in enumerate(self.requests)
        ]
        branches = [
            (i, j)
            for i, request in enumerate(self.requests)
            for j, tokens in enumerate(request.continuations)
            if len(tokens) - 1 > len(self._starts[i])
        ]
        parent = None
        if self._num_shared:
            _, parent = self._runner.prefill([self.requests[0].context[: self._num_shared]], keep=True)
        hidden, cache = self._runner.prefill(
            rows, parent=parent, parent_rows=[0] * len(rows), keep=bool(branches)
        )
        targets = TargetIndex()
        for i, request in enumerate(self.requests):
            last = i * hidden.shape[1] + len(request.context) - self._num_shared - 1
            for j, tokens in enumerate(request.continuations):
                targets.add(last, tokens[: len(self._starts[i]) + 1], self._slots[i] + j)
        self._score(self._runner.head.logits, hidden, targets)
        return branches, cache

    def _run_continuations(self, branches: Sequence[tuple[int, int]], cache: KVCache) -> None:
        rests = [self.requests[i].continuations[j][len(self._starts[i]) :] for i, j in branches]
        for batch in make_length_batches(
            [len(rest) - 1 for rest in rests],
            max_tokens=self._limits.max_tokens,
            min_tokens=self._limits.min_tokens,
        ):
            rows = [rests[number][:-1] for number in batch]
            hidden, _ = self._runner.prefill(
                rows, parent=cache, parent_rows=[branches[number][0] for number in batch]
            )
            targets = TargetIndex()
            for place, number in enumerate(batch):
                i, j = branches[number]
                targets.add(place * hidden.shape[1], rests[number][1:], self._slots[i] + j)
            self._score(self._runner.head.logits, hidden, targets)
