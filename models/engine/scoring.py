"""Log-likelihoods of continuations: each context is read once, its state is forked per continuation."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from evalsuite.models.engine.batching import batches
from evalsuite.models.engine.forward import Decoder
from evalsuite.models.engine.memory import Sizes
from evalsuite.models.engine.prefixes import families
from evalsuite.models.engine.requests import ScoreAnswer, ScoreRequest
from evalsuite.models.engine.states import State, on_device

NOT_FINITE = "the model's log-probabilities are not finite (NaN or infinity in its logits)"


@dataclass(slots=True)
class _Targets:
    """Which tokens are scored: `token[i]` after hidden state `row[i]`, counted for `slot[i]`."""

    row: list[int] = field(default_factory=list)
    token: list[int] = field(default_factory=list)
    slot: list[int] = field(default_factory=list)

    def add(self, rows: Sequence[int], tokens: Sequence[int], slot: int) -> None:
        self.row.extend(rows)
        self.token.extend(tokens)
        self.slot.extend([slot] * len(tokens))


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests (their numbers) that run together; all contexts begin with the same `shared` tokens."""

    numbers: list[int]
    shared: int = 0

    def halves(self) -> "list[Batch]":
        """The batch in two."""
        half = len(self.numbers) // 2
        return [Batch(self.numbers[:half], self.shared), Batch(self.numbers[half:], self.shared)]


TORN = 2
"""Most batches that a killed run has left half written down, each by one life."""


def plan_rest(
    requests: Sequence[ScoreRequest], numbers: Sequence[int], known: Collection[int], sizes: Sizes
) -> list[Batch]:
    """`plan` what is not `known`, in the very batches of a run that knew nothing, as far as that is cheap.

    The rounding of an answer depends on its batch. A killed run knows whole batches and perhaps a torn one,
    which is computed once more. Where many batches are known in part, other requests were asked before,
    and the missing ones are put together anew.
    """
    whole = plan(requests, numbers, sizes)
    if not known:
        return whole
    left = [batch for batch in whole if any(number not in known for number in batch.numbers)]
    if sum(any(number in known for number in batch.numbers) for batch in left) <= TORN:
        return left
    return plan(requests, [number for number in numbers if number not in known], sizes)


def plan(requests: Sequence[ScoreRequest], numbers: Sequence[int], sizes: Sizes) -> list[Batch]:
    """Put requests into batches, those with a common beginning together and the most tokens first."""
    found: list[tuple[int, Batch]] = []
    for shared, family in families([requests[number].context for number in numbers]):
        members = [numbers[place] for place in family]
        costs = [_cost(requests[number], shared) for number in members]
        own, more = [cost[0] for cost in costs], [cost[1] for cost in costs]
        for batch in batches(own, budget=sizes.tokens, floor=sizes.floor, extra=more):
            tokens = shared + max(own[place] for place in batch) * len(batch)
            found.append((tokens, Batch([members[place] for place in batch], shared)))
    return [batch for _, batch in sorted(found, key=lambda pair: -pair[0])]


def _cost(request: ScoreRequest, shared: int) -> tuple[int, int]:
    """Tokens of the request's own row, and of what comes with it: forked rows, copies of what is shared."""
    own = len(request.context) - shared
    # Of the shared tokens only keys and values are copied, a part of what a token needs while it is read.
    copied = shared // 4
    if len(request.continuations) == 1:
        return own + len(request.continuations[0]) - 1, copied
    return own, copied + sum(len(tokens) - 1 for tokens in request.continuations)


class ScoredBatch:
    """A batch whose computation was started; `answers` waits for it.

    A request with one continuation is one row, context and continuation together; otherwise the context
    is a row and every continuation of two or more tokens continues from its state. The first token of
    each continuation is scored by the context's last hidden state, so one-token continuations cost
    nothing beyond the context.

    Args:
        decoder: the model.
        requests: each with a non-empty context and non-empty continuations.
        sizes: how many continuation tokens and logits are held at once.
        shared: tokens with which all contexts begin, fewer than the shortest has; they are read once.
    """

    def __init__(
        self, decoder: Decoder, requests: Sequence[ScoreRequest], sizes: Sizes, shared: int = 0
    ) -> None:
        self.requests, self._shared = requests, shared
        self._parts: list[tuple[list[int], Tensor, Tensor]] = []
        self._decoder, self._sizes = decoder, sizes
        first = 0
        self._slots: list[int] = []
        for request in requests:
            self._slots.append(first)
            first += len(request.continuations)
        self._count = first
        children, state = self._read_contexts()
        if state is not None:
            self._read_continuations(children, state)

    def _read_contexts(self) -> tuple[list[tuple[int, int]], State | None]:
        """Start the contexts; return the continuations that go on from them, and from which state."""
        rows: list[tuple[int, ...]] = []
        children: list[tuple[int, int]] = []
        for i, request in enumerate(self.requests):
            own = request.context[self._shared :]
            if len(request.continuations) == 1:
                rows.append(own + request.continuations[0][:-1])
            else:
                rows.append(own)
                children += [(i, j) for j, tokens in enumerate(request.continuations) if len(tokens) > 1]
        parent = None
        if self._shared:
            _, parent = self._decoder.read([self.requests[0].context[: self._shared]], keep=True)
        hidden, state = self._decoder.read(rows, parent=parent, parents=[0] * len(rows), keep=bool(children))
        targets = _Targets()
        for i, request in enumerate(self.requests):
            last = i * hidden.shape[1] + len(request.context) - self._shared - 1
            if len(request.continuations) == 1:
                tokens = request.continuations[0]
                targets.add(range(last, last + len(tokens)), tokens, self._slots[i])
            else:
                for j, tokens in enumerate(request.continuations):
                    targets.add([last], tokens[:1], self._slots[i] + j)
        self._score(hidden, targets)
        return children, state

    def _read_continuations(self, children: Sequence[tuple[int, int]], state: State) -> None:
        lengths = [len(self.requests[i].continuations[j]) - 1 for i, j in children]
        for batch in batches(lengths, budget=self._sizes.tokens, floor=self._sizes.floor):
            chosen = [children[number] for number in batch]
            rows = [self.requests[i].continuations[j][:-1] for i, j in chosen]
            hidden, _ = self._decoder.read(rows, parent=state, parents=[i for i, _ in chosen])
            targets = _Targets()
            for number, (i, j) in enumerate(chosen):
                first = number * hidden.shape[1]
                tokens = self.requests[i].continuations[j][1:]
                targets.add(range(first, first + len(tokens)), tokens, self._slots[i] + j)
            self._score(hidden, targets)

    def _score(self, hidden: Tensor, targets: _Targets) -> None:
        flat = hidden.flatten(0, 1)
        found = target_logprobs(self._decoder, flat, targets.row, targets.token, self._sizes.logits)
        self._parts.append((targets.slot, *found))

    def answers(self) -> list[ScoreAnswer]:
        """One answer per request; with an error where a log-probability is not finite."""
        slot = np.concatenate([np.array(slots) for slots, _, _ in self._parts])
        logprobs = torch.cat([part for _, part, _ in self._parts]).double().cpu().numpy()
        best = torch.cat([part for _, _, part in self._parts]).cpu().numpy()
        sums = np.bincount(slot, weights=logprobs, minlength=self._count)
        greedy = np.ones(self._count, dtype=bool)
        greedy[slot[~best]] = False
        answers = []
        for request, start in zip(self.requests, self._slots, strict=True):
            end = start + len(request.continuations)
            if not np.isfinite(sums[start:end]).all():
                answers.append(ScoreAnswer.failed(NOT_FINITE))
                continue
            lengths = tuple(len(tokens) for tokens in request.continuations)
            answers.append(
                ScoreAnswer(tuple(sums[start:end].tolist()), tuple(greedy[start:end].tolist()), lengths)
            )
        return answers


def target_logprobs(
    decoder: Decoder, hidden: Tensor, rows: Sequence[int], tokens: Sequence[int], logits: int
) -> tuple[Tensor, Tensor]:
    """Log-probability of `tokens[i]` after hidden state `rows[i]`, and whether it is the most likely one.

    The head runs once per distinct row; log-softmax is in fp32 (lm-eval's HFLM keeps the model's dtype).

    Args:
        hidden: [N, width].
        rows: ascending numbers of hidden states, one per target; tokens: the target ids.
        logits: most logits (rows × vocabulary) that are held at once.

    Returns:
        float32 [targets] and bool [targets], on the device.
    """
    distinct, which = np.unique(np.asarray(rows), return_inverse=True)
    selected = hidden.index_select(0, on_device(distinct, hidden.device))
    owner, target = on_device(which, hidden.device), on_device(np.asarray(tokens), hidden.device)
    step = max(1, logits // decoder.vocabulary)
    logprobs, best = [], []
    for start in range(0, len(distinct), step):
        chunk = decoder.head(selected[start : start + step])
        low, high = np.searchsorted(which, [start, start + step])
        row, token = owner[low:high] - start, target[low:high]
        best.append(_is_argmax(chunk, row, token))
        logprobs.append(log_softmax(chunk, -1, dtype=torch.float32)[row, token])
    return torch.cat(logprobs), torch.cat(best)


def _is_argmax(logits: Tensor, row: Tensor, token: Tensor) -> Tensor:
    if logits.is_cuda:
        return logits.argmax(-1)[row] == token
    # On a CPU argmax is several times slower than amax; few targets reach the maximum, and of those tied
    # there only the first is the argmax.
    best = logits[row, token] == logits.amax(-1)[row]
    top = best.nonzero()[:, 0]
    best[top] = logits[row[top]].argmax(-1) == token[top]
    return best
