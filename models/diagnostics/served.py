"""Is the model that an engine such as a server runs the one that is evaluated here?

The same documents are answered here and by the engine, in every way in which requests reach a server: all at
once, again with warm caches, one at a time, and among other requests. Responses that change by more than
rounding are flips; where the engine returns its most likely tokens, its distributions are compared, too.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from torch import Tensor

from evalsuite.foundation import DataError
from evalsuite.models.inference.base import Engine, NoScoresError, TopTokensEngine
from evalsuite.models.inference.requests import (
    GenerateRequest,
    GenerateResponse,
    Response,
    SamplingParams,
    ScoreRequest,
    ScoreResponse,
)
from evalsuite.models.inference.torch.prefix_groups import common_prefix_length

NUM_GENERATED = 24
"""Length of a greedy response."""
LEAST_TAIL = 1e-6
"""Served probability below which what no returned token holds is the rounding of their sum."""
Run = Callable[[Sequence[Any]], Iterator[tuple[int, Any]]]


@dataclass(frozen=True, slots=True)
class Answers:
    """Responses to all documents, by their number: log-likelihoods, and greedy responses to the contexts.

    An engine that can generate only has no log-likelihoods.
    """

    scored: Mapping[int, ScoreResponse]
    generated: Mapping[int, GenerateResponse]

    @property
    def logprobs(self) -> list[float]:
        """Of all continuations, in nats."""
        return [value for index in range(len(self.scored)) for value in self.scored[index].logprobs]

    @property
    def greedy(self) -> list[bool]:
        """Of all continuations: whether every token is the most likely one."""
        return [flag for index in range(len(self.scored)) for flag in self.scored[index].greedy]

    @property
    def choices(self) -> list[int]:
        """The most likely continuation of each document."""
        rows = (self.scored[index].logprobs for index in range(len(self.scored)))
        return [row.index(max(row)) for row in rows]

    def num_changed_choices(self, other: "Answers") -> int:
        """Documents with another most likely continuation."""
        return sum(a != b for a, b in zip(self.choices, other.choices, strict=True))

    def changed_texts(self, other: "Answers") -> list[int]:
        """Documents with another greedy response.

        Servers without token ids have theirs from the text, which can be one of other tokens.
        """
        pairs = ((index, self.generated[index], other.generated[index]) for index in self.generated)
        return [index for index, a, b in pairs if a.tokens != b.tokens and a.text != b.text]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The checkpoint as it is evaluated here.

    Args:
        engine: runs it in this process.
        eos_ids: tokens that end its responses.
        requests: documents of at least two continuations.
        answers: to them.
        leads: of each continuation, the log-probability in nats by which its rarest greedy token leads the
            next one, or, if it is not greedy, by which its least likely token is behind the most likely one.
        texts: some texts, and their log-probabilities [T, V] in nats from a plain forward pass.
        tolerance: nats by which rounding changes a log-probability.
    """

    engine: Engine
    eos_ids: Sequence[int]
    requests: Sequence[ScoreRequest]
    answers: Answers
    leads: Sequence[float]
    texts: Sequence[tuple[tuple[int, ...], Tensor]]
    tolerance: float

    @property
    def prompts(self) -> list[GenerateRequest]:
        """The contexts of all documents, to be continued greedily."""
        return greedy_prompts(self.requests)


@dataclass(frozen=True, slots=True)
class ServedPass:
    """How one way of running requests on an engine changes the responses.

    Args:
        name: short name; description: how requests are run, and what with they are compared.
        max_difference: largest difference of a continuation's log-probability, in nats.
        changed_choices: documents whose most likely continuation changes.
        changed_texts: documents whose greedy response changes.
        num_documents, num_continuations: compared ones.
        flipped_texts: numbers of the documents whose greedy response changes by more than rounding: where it
            parts from the other one, the evaluated model's log-probabilities of the two tokens are more than
            the tolerance apart.
        flipped_continuations: numbers of the continuations that are greedy in one of the two only, of which
            the same holds.
        skipped: why it was not run, or None.
        unscored: why only greedy responses are compared, or None.
    """

    name: str
    description: str
    max_difference: float = 0.0
    changed_choices: int = 0
    changed_texts: int = 0
    num_documents: int = 0
    num_continuations: int = 0
    flipped_texts: tuple[int, ...] = ()
    flipped_continuations: tuple[int, ...] = ()
    skipped: str | None = None
    unscored: str | None = None


@dataclass(frozen=True, slots=True)
class ServedDivergence:
    """Lower bounds of KL(evaluated ‖ served) at the positions of some texts (`lumped_kl`).

    Args:
        mean, largest: over positions, in nats.
        positions: their number.
        returned: mean served probability of the returned tokens; the bound is the KL itself at 1.
    """

    mean: float
    largest: float
    positions: int
    returned: float


def greedy_prompts(requests: Sequence[ScoreRequest]) -> list[GenerateRequest]:
    """The contexts of documents, to be continued greedily."""
    return [GenerateRequest(request.context, SamplingParams(NUM_GENERATED)) for request in requests]


def run_served_passes(
    evaluated: Evaluated, engine: Engine, load: Sequence[ScoreRequest] = ()
) -> list[ServedPass]:
    """Run documents on an engine in four ways.

    All at once, again, and one by one in reverse order are compared with the evaluated model; among other
    documents with the engine's responses to one at a time, so that nothing but the load differs. Of an engine
    that can generate only, greedy responses alone are compared. Responses are generated before continuations
    are scored, whose contexts would warm the caches.

    Args:
        evaluated: what is compared with.
        engine: runs what is said to be the same checkpoint in the same dtype.
        load: other documents, which are in flight with those compared; without any, the last way is skipped.

    Raises:
        DataError: a request fails in the engine.
    """
    prompts, requests, passes = evaluated.prompts, evaluated.requests, list[ServedPass]()
    unscored = None
    for name, how, order in (
        (engine.name, f"the engine {engine.name} instead of the in-process one", _at_once),
        (f"{engine.name} again", f"{engine.name}, after it has seen the same requests", _at_once),
        (f"{engine.name} alone", f"{engine.name}, one request at a time, the last first", _alone),
    ):
        generated, scored = order(engine.generate, prompts), {}
        try:
            scored = order(engine.score, requests)
        except NoScoresError as error:
            if passes:
                raise  # It has scored the same requests before.
            requests, unscored = [], str(error)
        found = Answers(scored, generated)
        passes.append(compare_answers(name, how, evaluated, evaluated.answers, found, unscored))
    name = f"{engine.name} under load"
    if not load:
        return [*passes, ServedPass(name, "", skipped="the data has no other documents")]
    generated = _among(engine.generate, prompts, greedy_prompts(load))
    loaded = Answers(_among(engine.score, requests, load), generated)
    how = f"{engine.name} with {len(load)} other documents in flight, compared with one request at a time"
    return [*passes, compare_answers(name, how, evaluated, found, loaded, unscored)]


def compare_answers(
    name: str,
    description: str,
    evaluated: Evaluated,
    expected: Answers,
    found: Answers,
    unscored: str | None = None,
) -> ServedPass:
    """Compare two sets of answers; the evaluated model tells which changes rounding explains.

    Args:
        unscored: why `found` has no log-likelihoods.

    Raises:
        DataError: a request failed.
    """
    responses: list[Response] = [*found.scored.values(), *found.generated.values()]
    errors = (response.error for response in responses)
    if error := next(filter(None, errors), None):
        raise DataError(f"a request fails in engine {name}: {error}")
    texts = expected.changed_texts(found)
    generated = ServedPass(
        name,
        description,
        changed_texts=len(texts),
        num_documents=len(found.generated),
        flipped_texts=_flipped_texts(evaluated, expected, found, texts),
        unscored=unscored,
    )
    if unscored:
        return generated
    flags = zip(found.greedy, expected.greedy, evaluated.leads, strict=True)
    return replace(
        generated,
        max_difference=max(abs(a - b) for a, b in zip(found.logprobs, expected.logprobs, strict=True)),
        changed_choices=expected.num_changed_choices(found),
        num_continuations=len(found.greedy),
        flipped_continuations=tuple(
            index for index, (a, b, lead) in enumerate(flags) if a != b and lead > evaluated.tolerance
        ),
    )


def served_divergence(evaluated: Evaluated, engine: Engine) -> ServedDivergence | None:
    """Bound the KL between the two distributions at every position of the evaluated texts.

    Returns:
        None if the engine returns no most likely tokens.
    """
    if not isinstance(engine, TopTokensEngine):
        return None
    found = dict(engine.top_logprobs([tokens for tokens, _ in evaluated.texts]))
    bounds, returned = [], []
    for index, (_, logprobs) in enumerate(evaluated.texts):
        rows = found[index]
        if rows is None:
            return None
        for own, row in zip(logprobs[:-1], rows, strict=True):
            served = {token: q for token, q in row.items() if token < len(own) and math.isfinite(q)}
            bounds.append(lumped_kl(own, served))
            returned.append(math.fsum(map(math.exp, served.values())))
    return ServedDivergence(fmean(bounds), max(bounds), len(bounds), min(1.0, fmean(returned)))


def lumped_kl(evaluated: Tensor, served: Mapping[int, float]) -> float:
    """A lower bound of KL(evaluated ‖ served) at one position, in nats.

    With p evaluated, q served, and S the tokens that the server returns,

        Σ_S p log(p / q) + p(rest) log(p(rest) / q(rest)),    p(rest) = 1 − Σ_S p,    q(rest) = 1 − Σ_S q.

    Tokens outside S count as one. That can only lower the divergence (the log sum inequality: Cover and
    Thomas, Elements of Information Theory, Theorem 2.7.1): 0 does not prove that the tails are equal. A
    q(rest) below `LEAST_TAIL` counts as that, which lowers it, too.

    Args:
        evaluated: log-probabilities [V].
        served: those of S by token id.
    """
    own = evaluated[list(served)].double().tolist()
    terms = [math.exp(p) * (p - q) for p, q in zip(own, served.values(), strict=True)]
    p_rest = 1 - math.fsum(map(math.exp, own))
    q_rest = max(LEAST_TAIL, 1 - math.fsum(map(math.exp, served.values())))
    if p_rest > 0:
        terms.append(p_rest * math.log(p_rest / q_rest))
    return max(0.0, math.fsum(terms))


def _flipped_texts(
    evaluated: Evaluated, expected: Answers, found: Answers, changed: Sequence[int]
) -> tuple[int, ...]:
    """Of greedy responses that change, those that rounding does not explain."""
    forks = [
        _fork(evaluated, index, expected.generated[index].tokens, found.generated[index].tokens)
        for index in changed
    ]
    responses = dict(evaluated.engine.score([request for request, _ in forks]))
    flipped = []
    for place, (index, (_, split)) in enumerate(zip(changed, forks, strict=True)):
        values = responses[place].logprobs
        sides = values[:split], values[split:]
        # Of a model without a token to end with, nothing shows that rounding ended a response.
        if not all(sides) or abs(max(sides[0]) - max(sides[1])) > evaluated.tolerance:
            flipped.append(index)
    return tuple(flipped)


def _fork(
    evaluated: Evaluated, index: int, one: tuple[int, ...], other: tuple[int, ...]
) -> tuple[ScoreRequest, int]:
    """Request of the tokens with which two responses go on where they part, and how many are the first one's.

    A response that ends there goes on with any token that ends it.
    """
    same = common_prefix_length([one, other])
    first, second = (
        [(token,) for token in (tokens[same : same + 1] or evaluated.eos_ids)] for tokens in (one, other)
    )
    return ScoreRequest(evaluated.requests[index].context + one[:same], (*first, *second)), len(first)


def _at_once(run: Run, requests: Sequence[Any]) -> dict[int, Any]:
    return dict(run(requests))


def _alone(run: Run, requests: Sequence[Any]) -> dict[int, Any]:
    """Responses by index, to one request at a time, the last first."""
    order = reversed(range(len(requests)))
    return {index: response for index in order for _, response in run([requests[index]])}


def _among(run: Run, requests: Sequence[Any], others: Sequence[Any]) -> dict[int, Any]:
    """Responses by index, to requests each of which is sent between two others."""
    if not requests:
        return {}
    pairs = zip(itertools.cycle(others), requests, strict=False)
    responses = run([*itertools.chain.from_iterable(pairs), others[-1]])
    return {index // 2: response for index, response in responses if index % 2}
