"""The two verbs that every engine has."""

from collections.abc import Collection, Iterator, Sequence
from typing import Protocol, runtime_checkable

from evalsuite.models.engine.requests import GenerateAnswer, GenerateRequest, ScoreAnswer, ScoreRequest


class Engine(Protocol):
    """Answers requests of token ids with one checkpoint.

    Both verbs yield (index into the given list, answer) in whatever order answers become ready, so that
    a caller can write each down at once. A request that cannot be answered yields an answer with an
    error. Answers do not depend on which requests are asked together, up to rounding.
    """

    @property
    def name(self) -> str:
        """Short name of the engine, e.g. "torch"."""

    @property
    def fingerprint(self) -> str:
        """16 hex digits over weights, dtype, engine and versions: what an answer may be reused for."""

    @property
    def max_length(self) -> int:
        """Most positions the model reads."""

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, ScoreAnswer]]:
        """Score continuations after contexts."""

    def generate(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateAnswer]]:
        """Write continuations of prompts."""


@runtime_checkable
class Resumable(Protocol):
    """An engine whose log-probabilities after a restart are those of an undisturbed run, bit for bit."""

    def score_rest(
        self, requests: Sequence[ScoreRequest], known: Collection[int]
    ) -> Iterator[tuple[int, ScoreAnswer]]:
        """`Engine.score` without the numbers in `known`, batched as if nothing were known."""


def score_rest(
    engine: Engine, requests: Sequence[ScoreRequest], known: Collection[int]
) -> Iterator[tuple[int, ScoreAnswer]]:
    """Score all requests but those whose numbers are `known`; indices are into `requests`."""
    if isinstance(engine, Resumable):
        yield from engine.score_rest(requests, known)
        return
    missing = [number for number in range(len(requests)) if number not in known]
    for place, answer in engine.score([requests[number] for number in missing]):
        yield missing[place], answer
