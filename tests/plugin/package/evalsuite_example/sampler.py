"""A sampler: the documents with the longest rows."""

from collections.abc import Sequence

from evalsuite.tasks.sources.documents import Document

EVALSUITE_API = 1


def longest(population: Sequence[Document], limit: int, seed: int) -> list[Document]:
    """The documents whose rows have the most letters."""
    return sorted(population, key=lambda document: -len(str(document.row)))[:limit]
