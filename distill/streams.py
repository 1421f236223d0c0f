"""The rows of a source, or of a mixture of sources, in an order that can be taken up at any row."""

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from tokenizers import Tokenizer

from evalsuite.distill.packing import Document, Row, pack_documents, pack_stream, tokenize
from evalsuite.distill.readers import Example, PocketReader, Position, Reader, shuffled
from evalsuite.distill.recipe import DataSource
from evalsuite.foundation import DataError

GROUP = 512
"""Documents tokenized and packed together."""

Encode = Callable[[Sequence[Example]], list[Document]]


class Groups(Protocol):
    """The documents of one window, tokenized group by group when they are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> list[Document]: ...


class Provider(Protocol):
    """What a stream reads from: windows in a shuffled order, tokenized.

    The pocket world's texts are independent draws, so theirs is left as it is.
    """

    def window(self, position: Position, order: tuple[int, ...]) -> tuple[Groups, Position | None]:
        """The groups of the window at `position`, shuffled by `order`, and the next position."""


class _LazyGroups:
    def __init__(self, examples: Sequence[Example], encode: Encode) -> None:
        self._examples, self._encode = examples, encode

    def __len__(self) -> int:
        return -(-len(self._examples) // GROUP)

    def __getitem__(self, index: int) -> list[Document]:
        return self._encode(self._examples[index * GROUP : (index + 1) * GROUP])


class SerialProvider:
    """Reads, shuffles and tokenizes in the calling thread."""

    def __init__(self, reader: Reader, encode: Encode) -> None:
        self._reader, self._encode = reader, encode

    def window(self, position: Position, order: tuple[int, ...]) -> tuple[Groups, Position | None]:
        """See `Provider`."""
        examples, following = self._reader.window(position)
        if not isinstance(self._reader, PocketReader):
            examples = shuffled(examples, *order)
        return _LazyGroups(examples, self._encode), following


class PocketProvider:
    """Makes the pocket world's texts in worker processes, ahead of time, in the order of their numbers."""

    def __init__(
        self, source: DataSource, size: int, tokenizer: Tokenizer, end: int, *, completions: bool
    ) -> None:
        self._size, self._ahead = size, 2 * source.workers
        self._pool = ProcessPoolExecutor(
            source.workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=(source, size, tokenizer.to_str(), end, completions),
        )
        self._coming: deque[tuple[Position, Future[list[Document]]]] = deque()

    def window(self, position: Position, order: tuple[int, ...]) -> tuple[Groups, Position | None]:
        """See `Provider`."""
        if self._coming and self._coming[0][0] != position:
            self._coming.clear()
        following = position
        if self._coming:
            following = _after(self._coming[-1][0], self._size)
        while len(self._coming) < self._ahead:
            self._coming.append((following, self._pool.submit(_work, following)))
            following = _after(following, self._size)
        _, future = self._coming.popleft()
        return [future.result()], _after(position, self._size)


def _after(position: Position, size: int) -> Position:
    return {"text": position.get("text", 0) + size}


_worker: tuple[PocketReader, Encode] | None = None


def _start_worker(source: DataSource, size: int, tokenizer: str, end: int, completions: bool) -> None:
    global _worker
    loaded = Tokenizer.from_str(tokenizer)
    _worker = (
        PocketReader(source, size),
        lambda examples: tokenize(examples, loaded, end, completions=completions),
    )


def _work(position: Position) -> list[Document]:
    assert _worker is not None
    reader, encode = _worker
    return encode(reader.window(position)[0])


@dataclass
class StreamState:
    """Where a source's stream stands; small and JSON."""

    epoch: int = 0
    window: Position = field(default_factory=dict)
    number: int = 0
    """Windows read in this epoch."""
    group: int = 0
    row: int = 0
    """Rows of this group that were handed out."""
    carried: list[tuple[list[int], list[bool]]] = field(default_factory=list)
    """Documents left over from the groups before this one."""


def source_rows(
    name: str,
    source: DataSource,
    provider: Provider,
    *,
    length: int,
    packing: str,
    pad: int,
    seed: int,
    state: dict[str, Any] | None = None,
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Yield the rows of one source, each with the state after it; endless if the source repeats.

    Raises:
        DataError: not one document passes the source's conditions.
    """
    at = StreamState(**state) if state else StreamState()
    carried = [
        Document(np.array(tokens, dtype=np.int32), np.array(counts, dtype=bool))
        for tokens, counts in at.carried
    ]
    empty = state is None
    while True:
        groups, following = provider.window(at.window, (seed, source.seed, at.epoch, at.number))
        while at.group < len(groups):
            documents = [*carried, *groups[at.group]]
            empty = empty and not documents
            if packing == "concat":
                rows, kept = pack_stream(documents, length)
            else:
                last = following is None and at.group == len(groups) - 1 and not source.repeat
                rows, kept = pack_documents(documents, length, pad, last=last)
                # Packing sorts by length; a batch of long documents alone would be no fair sample.
                rows = shuffled(rows, seed, source.seed, at.epoch, at.number, at.group)
            for number in range(at.row, len(rows)):
                at.row = number + 1
                yield rows[number], {**vars(at)}
            carried = kept
            at.carried = [(document.tokens.tolist(), document.counts.tolist()) for document in kept]
            at.group, at.row = at.group + 1, 0
        at.group, at.number = 0, at.number + 1
        if following is None:
            if empty:
                raise DataError(f"data source '{name}': no document is left after filtering")
            if not source.repeat:
                return
            at.epoch, at.number, at.window = at.epoch + 1, 0, {}
        else:
            at.window = following


@dataclass
class MixtureState:
    """Rows taken of each source, and where each stands."""

    taken: dict[str, int] = field(default_factory=dict)
    streams: dict[str, dict[str, Any]] = field(default_factory=dict)


def mixed_rows(
    streams: dict[str, Iterator[tuple[Row, dict[str, Any]]]],
    shares: dict[str, float],
    state: dict[str, Any] | None = None,
) -> Iterator[tuple[Row, dict[str, Any]]]:
    """Yield rows of several sources in fixed shares, each with the state after it.

    The next row comes from the source that is furthest behind its share, so that after every row no
    source is off by more than one: the ratio is exact and nothing is random. It ends with the first
    source that does.
    """
    at = MixtureState(**state) if state else MixtureState()
    while True:
        total = sum(at.taken.values()) + 1
        name = max(shares, key=lambda name: shares[name] * total - at.taken.get(name, 0))
        row, position = next(streams[name], (None, {}))
        if row is None:
            return
        at.taken[name] = at.taken.get(name, 0) + 1
        at.streams[name] = position
        yield row, {"taken": {**at.taken}, "streams": {**at.streams}}


__all__ = ["PocketProvider", "Provider", "SerialProvider", "mixed_rows", "source_rows"]
