"""The two verbs that every engine has."""

from collections.abc import Iterator, Sequence
from typing import Protocol

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
