"""Samplers: which documents of a benchmark a limit takes."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

from evalsuite.foundation import content_hash
from evalsuite.foundation.registry import Registry


class Identified(Protocol):
    """What a sampler knows of a document; `evalsuite.tasks.sources.documents.Document` also has its row."""

    @property
    def doc_id(self) -> str:
        """Hash of its content."""


T = TypeVar("T", bound=Identified)
Sampler = Callable[[Sequence[Any], int, int], Iterable[Any]]
"""(documents, limit, seed) → a sample of so many documents. A smaller sample is part of a larger one."""


def _as_sampler(value: Any) -> Sampler:
    if not callable(value):
        raise TypeError(f"{value!r} is no function of documents, limit and seed")
    inspect.signature(value).bind([], 1, 0)
    sampler: Sampler = value
    return sampler


SAMPLERS: Registry[Sampler] = Registry("sampler", group="evalsuite.samplers", validate=_as_sampler)
"""Key `sampler` of a suite or its entries → which documents a limit takes."""


@SAMPLERS.register("seeded")
def seeded(population: Sequence[T], limit: int, seed: int) -> list[T]:
    """The documents with the smallest hash of seed and content: a random sample."""
    return sorted(population, key=lambda document: content_hash([seed, document.doc_id]))[:limit]


@SAMPLERS.register("first")
def first(population: Sequence[T], limit: int, seed: int) -> Sequence[T]:
    """The first documents, as lm-eval's `--limit` takes them."""
    return population[:limit]
