"""N-grams of words: hashes of a text, and an index of those of benchmark documents.

Words are runs of letters and digits in lower case, as in arXiv 2005.14165, Appendix C. Strings of a row are
matched separately, so that no n-gram spans a question and its answer.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

NGRAM_WORDS = 13
"""Length of an n-gram in words."""
_WORD = re.compile(r"[^\W_]+")
_FACTOR = np.uint64(0x9E3779B97F4A7C15)

Hashes = NDArray[np.uint64]


@cache
def _word_hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big")


def words(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return _WORD.findall(text.lower())


def ngram_hashes(text: str, length: int = NGRAM_WORDS) -> Hashes:
    """64-bit hashes of all n-grams of `length` words; empty if the text has fewer words."""
    found = np.fromiter(map(_word_hash, words(text)), dtype=np.uint64)
    count = len(found) - length + 1
    if count < 1:
        return np.empty(0, dtype=np.uint64)
    hashes = np.zeros(count, dtype=np.uint64)
    for offset in range(length):
        hashes = hashes * _FACTOR + found[offset : offset + count]
    return hashes


def strings(value: Any) -> Iterator[str]:
    """All strings inside a row."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from chain.from_iterable(map(strings, value.values()))
    elif isinstance(value, Iterable):
        yield from chain.from_iterable(map(strings, value))


@dataclass(frozen=True)
class OverlapCount:
    """Number of documents, of those with at least one n-gram, and of those that overlap."""

    documents: int
    long_enough: int
    overlapping: int


class NgramIndex:
    """N-gram hashes of the documents of several benchmarks.

    Args:
        rows: benchmark → its rows; each row is a document.
    """

    def __init__(self, rows: Mapping[str, Sequence[Any]]) -> None:
        self.names = list(rows)
        self._sizes = [len(each) for each in rows.values()]
        documents = [
            np.unique(np.concatenate([ngram_hashes(text) for text in strings(row)] or [ngram_hashes("")]))
            for row in chain.from_iterable(rows.values())
        ]
        joined = np.concatenate(documents) if documents else np.empty(0, dtype=np.uint64)
        self._document = np.repeat(np.arange(len(documents)), [len(hashes) for hashes in documents])
        self._hashes, self._inverse = np.unique(joined, return_inverse=True)
        self._matched = np.zeros(len(self._hashes), dtype=bool)
        benchmark = np.repeat(np.arange(len(self.names)), self._sizes)
        self._benchmarks = np.zeros((len(self._hashes), len(self.names)), dtype=bool)
        self._benchmarks[self._inverse, benchmark[self._document]] = True

    def match(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Which benchmarks each training text overlaps with. [texts, benchmarks]; `counts` accumulates."""
        hashes_by_text = [ngram_hashes(text) for text in texts]
        owner = np.repeat(np.arange(len(texts)), [len(hashes) for hashes in hashes_by_text])
        hashes = np.concatenate(hashes_by_text)
        overlapping = np.zeros((len(texts), len(self.names)), dtype=bool)
        if len(hashes) and len(self._hashes):
            index = np.searchsorted(self._hashes, hashes).clip(max=len(self._hashes) - 1)
            hit = self._hashes[index] == hashes
            self._matched[index[hit]] = True
            np.logical_or.at(overlapping, owner[hit], self._benchmarks[index[hit]])
        return overlapping

    def counts(self) -> dict[str, OverlapCount]:
        """Benchmark → overlap of its documents with all texts passed to `match`."""
        total = sum(self._sizes)
        long_enough = np.bincount(self._document, minlength=total) > 0
        overlapping = np.zeros(total, dtype=bool)
        overlapping[self._document[self._matched[self._inverse]]] = True
        ends = np.cumsum(self._sizes)
        return {
            name: OverlapCount(
                size, int(long_enough[end - size : end].sum()), int(overlapping[end - size : end].sum())
            )
            for name, size, end in zip(self.names, self._sizes, ends, strict=True)
        }
