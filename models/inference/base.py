"""The protocol that every inference engine implements."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from evalsuite.foundation import ConfigError
from evalsuite.models.inference.requests import (
    GenerateRequest,
    GenerateResponse,
    ScoreRequest,
    ScoreResponse,
)


class Engine(Protocol):
    """Runs requests of token ids on one checkpoint.

    Both verbs yield (index into the given list, response) in order of completion, so that a caller can
    store each response immediately. A request that cannot be run yields a response with an error. Responses
    do not depend on which requests are batched together, up to rounding.
    """

    @property
    def name(self) -> str:
        """Short name of the engine, e.g. "torch"."""

    @property
    def weights_id(self) -> str:
        """`weights_id` of the checkpoint that it runs; responses are stored for no other one."""

    @property
    def versions(self) -> Mapping[str, str]:
        """Device, dtype and versions that affect its numerics, for the run's records."""

    @property
    def fingerprint(self) -> str:
        """16 hex digits over weights, dtype, engine and versions; responses are reused only if it matches."""

    @property
    def max_length(self) -> int:
        """Maximum number of positions that the model reads."""

    @property
    def notice(self) -> str:
        """What a run's records say about it, such as why it runs in place of another engine; may be empty."""

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, ScoreResponse]]:
        """Compute the log-likelihood of continuations given their contexts."""

    def generate(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, GenerateResponse]]:
        """Generate continuations of prompts."""

    def close(self) -> None:
        """Release what it holds, such as a subprocess; it is not used afterwards."""


@runtime_checkable
class ResumableEngine(Protocol):
    """An engine whose log-probabilities after a restart equal those of an uninterrupted run bit for bit."""

    def score_remaining(
        self, requests: Sequence[ScoreRequest], completed: Collection[int]
    ) -> Iterator[tuple[int, ScoreResponse]]:
        """`Engine.score` without the indices in `completed`, batched as if none were completed."""


@runtime_checkable
class MemoryBoundEngine(Protocol):
    """An engine whose batches, and with them the rounding of responses, follow from the free memory."""

    @property
    def batch_limits(self) -> Mapping[str, int]:
        """Limits of its batches, chosen when it was made."""

    def restore_batch_limits(self, limits: Mapping[str, int], source: str) -> None:
        """Batch as an earlier engine with these `batch_limits` did.

        Args:
            limits: as the run has recorded them.
            source: where, for the error.

        Raises:
            DataError: they are no limits of this engine.
        """


@runtime_checkable
class TopTokensEngine(Protocol):
    """An engine that returns the most likely tokens of the model."""

    def top_logprobs(
        self, texts: Sequence[Sequence[int]]
    ) -> Iterator[tuple[int, list[dict[int, float]] | None]]:
        """Compute log-probabilities, in nats, of the most likely tokens after each token but a text's last.

        Yields:
            Index of the text, and per position token id → log-probability; None if the model's most likely
            tokens are not known.
        """


class NoScoresError(ConfigError):
    """An engine that can generate only: a server without log-probabilities of prompts."""


@runtime_checkable
class RemoteEngine(Protocol):
    """An engine whose responses come one at a time from elsewhere."""

    stores_each: bool
    """Each response is stored before the next one is awaited: a process that is killed repeats none."""


def score_remaining(
    engine: Engine, requests: Sequence[ScoreRequest], completed: Collection[int]
) -> Iterator[tuple[int, ScoreResponse]]:
    """Score all requests except those whose indices are in `completed`; indices refer to `requests`."""
    if isinstance(engine, ResumableEngine):
        yield from engine.score_remaining(requests, completed)
        return
    missing = [index for index in range(len(requests)) if index not in completed]
    for position, response in engine.score([requests[index] for index in missing]):
        yield missing[position], response
