"""Log-likelihoods of continuations: each context is read once, its state is forked per continuation."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from evalsuite.models.engine.batching import batches
from evalsuite.models.engine.forward import Decoder
from evalsuite.models.engine.memory import Sizes
from evalsuite.models.engine.requests import ScoreAnswer, ScoreRequest

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


def read_cost(request: ScoreRequest) -> tuple[int, int]:
    """Tokens of the request's own row, and tokens of the rows forked from it (see `score_batch`)."""
    if len(request.continuations) == 1:
        return len(request.context) + len(request.continuations[0]) - 1, 0
    return len(request.context), sum(len(tokens) - 1 for tokens in request.continuations)


def score_batch(decoder: Decoder, requests: Sequence[ScoreRequest], sizes: Sizes) -> list[ScoreAnswer]:
    """Score a batch of requests whose contexts fit into one forward pass.

    A request with one continuation is one row, context and continuation together; otherwise the context
    is a row and every continuation of two or more tokens continues from its state. The first token of
    each continuation is scored by the context's last hidden state, so one-token continuations cost
    nothing beyond the context.

    Args:
        requests: each with a non-empty context and non-empty continuations.
        sizes: how many continuation tokens and logits are held at once.

    Returns:
        One answer per request; with an error where a log-probability is not finite.
    """
    owners = [(i, j) for i, request in enumerate(requests) for j in range(len(request.continuations))]
    slots = {owner: slot for slot, owner in enumerate(owners)}
    sums = np.zeros(len(owners))
    greedy = np.ones(len(owners), dtype=bool)

    rows: list[tuple[int, ...]] = []
    children: list[tuple[int, int]] = []
    for i, request in enumerate(requests):
        if len(request.continuations) == 1:
            rows.append(request.context + request.continuations[0][:-1])
        else:
            rows.append(request.context)
            children += [(i, j) for j, tokens in enumerate(request.continuations) if len(tokens) > 1]
    hidden, state = decoder.read(rows, keep=bool(children))
    width = hidden.shape[1]
    targets = _Targets()
    for i, request in enumerate(requests):
        last = i * width + len(request.context) - 1
        if len(request.continuations) == 1:
            tokens = request.continuations[0]
            targets.add(range(last, last + len(tokens)), tokens, slots[i, 0])
        else:
            for j, tokens in enumerate(request.continuations):
                targets.add([last], tokens[:1], slots[i, j])
    _count(decoder, hidden, targets, sums, greedy, sizes.logits)
    del hidden

    lengths = [len(requests[i].continuations[j]) - 1 for i, j in children]
    for batch in batches(lengths, budget=sizes.tokens, floor=sizes.floor):
        chosen = [children[number] for number in batch]
        rows = [requests[i].continuations[j][:-1] for i, j in chosen]
        hidden, _ = decoder.read(rows, parent=state, parents=[i for i, _ in chosen])
        targets = _Targets()
        for number, (i, j) in enumerate(chosen):
            first = number * hidden.shape[1]
            tokens = requests[i].continuations[j][1:]
            targets.add(range(first, first + len(tokens)), tokens, slots[i, j])
        _count(decoder, hidden, targets, sums, greedy, sizes.logits)
    return _answers(requests, sums, greedy)


def _count(
    decoder: Decoder, hidden: Tensor, targets: _Targets, sums: np.ndarray, greedy: np.ndarray, logits: int
) -> None:
    """Add the log-probabilities of the targets to `sums`, and clear `greedy` where one is not the argmax."""
    flat = hidden.flatten(0, 1)
    logprobs, best = target_logprobs(decoder, flat, targets.row, targets.token, logits)
    slot = np.array(targets.slot)
    sums += np.bincount(slot, weights=logprobs, minlength=len(sums))
    greedy[slot[~best]] = False


def target_logprobs(
    decoder: Decoder, hidden: Tensor, rows: Sequence[int], tokens: Sequence[int], logits: int
) -> tuple[np.ndarray, np.ndarray]:
    """Log-probability of `tokens[i]` after hidden state `rows[i]`, and whether it is the most likely one.

    The head runs once per distinct row; log-softmax is in fp32 (lm-eval's HFLM keeps the model's dtype).

    Args:
        hidden: [N, width].
        rows: ascending numbers of hidden states, one per target; tokens: the target ids.
        logits: most logits (rows × vocabulary) that are held at once.

    Returns:
        float64 [targets] and bool [targets].
    """
    distinct, which = np.unique(np.asarray(rows), return_inverse=True)
    selected = hidden.index_select(0, torch.from_numpy(distinct).to(hidden.device))
    owner = torch.from_numpy(which).to(hidden.device)
    target = torch.tensor(tokens, device=hidden.device)
    step = max(1, logits // decoder.vocabulary)
    logprobs, best = [], []
    for start in range(0, len(distinct), step):
        chunk = decoder.head(selected[start : start + step])
        low, high = np.searchsorted(which, [start, start + step])
        row, token = owner[low:high] - start, target[low:high]
        best.append(_is_argmax(chunk, row, token))
        logprobs.append(log_softmax(chunk, -1, dtype=torch.float32)[row, token])
    return torch.cat(logprobs).double().cpu().numpy(), torch.cat(best).cpu().numpy()


def _is_argmax(logits: Tensor, row: Tensor, token: Tensor) -> Tensor:
    if logits.is_cuda:
        return logits.argmax(-1)[row] == token
    # On a CPU argmax is several times slower than amax; few targets reach the maximum, and of those tied
    # there only the first is the argmax.
    best = logits[row, token] == logits.amax(-1)[row]
    top = best.nonzero()[:, 0]
    best[top] = logits[row[top]].argmax(-1) == token[top]
    return best


def _answers(requests: Sequence[ScoreRequest], sums: np.ndarray, greedy: np.ndarray) -> list[ScoreAnswer]:
    answers = []
    start = 0
    for request in requests:
        end = start + len(request.continuations)
        if np.isfinite(sums[start:end]).all():
            lengths = tuple(len(tokens) for tokens in request.continuations)
            answers.append(
                ScoreAnswer(tuple(sums[start:end].tolist()), tuple(greedy[start:end].tolist()), lengths)
            )
        else:
            answers.append(ScoreAnswer.failed(NOT_FINITE))
        start = end
    return answers
