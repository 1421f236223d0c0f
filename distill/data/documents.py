"""Tokenized documents of a source, in shards of a shuffled order."""

import multiprocessing
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Protocol

from tokenizers import Tokenizer

from evalsuite.distill.data.config import PocketSourceConfig
from evalsuite.distill.data.packing import Document, tokenize
from evalsuite.distill.data.sources import Example, PocketReader, Position, Reader, shuffled

BATCH_SIZE = 512
"""Documents that are tokenized and packed together."""

Encode = Callable[[Sequence[Example]], list[Document]]


class DocumentBatches(Protocol):
    """The documents of one shard in batches that are tokenized on access."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> list[Document]: ...


class DocumentSource(Protocol):
    """Tokenized shards of a source in a shuffled order.

    Texts of the pocket corpus are drawn independently and are not shuffled.
    """

    def read_shard(
        self, position: Position, order: tuple[int, ...]
    ) -> tuple[DocumentBatches, Position | None]:
        """The shard at `position`, shuffled with the seed `order`, and the position of the next shard."""


class _LazyBatches:
    def __init__(self, examples: Sequence[Example], encode: Encode) -> None:
        self._examples, self._encode = examples, encode

    def __len__(self) -> int:
        return -(-len(self._examples) // BATCH_SIZE)

    def __getitem__(self, index: int) -> list[Document]:
        return self._encode(self._examples[index * BATCH_SIZE : (index + 1) * BATCH_SIZE])


class SerialDocumentSource:
    """Reads, shuffles and tokenizes in the calling thread."""

    def __init__(self, reader: Reader, encode: Encode) -> None:
        self._reader, self._encode = reader, encode

    def read_shard(
        self, position: Position, order: tuple[int, ...]
    ) -> tuple[DocumentBatches, Position | None]:
        """See `DocumentSource`."""
        examples, next_position = self._reader.read_shard(position)
        if not isinstance(self._reader, PocketReader):
            examples = shuffled(examples, *order)
        return _LazyBatches(examples, self._encode), next_position


class PocketDocumentSource:
    """Generates and tokenizes the pocket corpus in worker processes, ahead of time and in order."""

    def __init__(
        self,
        source: PocketSourceConfig,
        shard_size: int,
        tokenizer: Tokenizer,
        eos_id: int,
        *,
        mask_prompt: bool,
    ) -> None:
        self._shard_size, self._lookahead = shard_size, 2 * source.num_workers
        self._pool = ProcessPoolExecutor(
            source.num_workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_init_worker,
            initargs=(source, shard_size, tokenizer.to_str(), eos_id, mask_prompt),
        )
        self._pending: deque[tuple[Position, Future[list[Document]]]] = deque()

    def read_shard(
        self, position: Position, order: tuple[int, ...]
    ) -> tuple[DocumentBatches, Position | None]:
        """See `DocumentSource`."""
        if self._pending and self._pending[0][0] != position:
            self._pending.clear()
        upcoming = position
        if self._pending:
            upcoming = _next_position(self._pending[-1][0], self._shard_size)
        while len(self._pending) < self._lookahead:
            self._pending.append((upcoming, self._pool.submit(_read_shard, upcoming)))
            upcoming = _next_position(upcoming, self._shard_size)
        _, future = self._pending.popleft()
        return [future.result()], _next_position(position, self._shard_size)


def _next_position(position: Position, shard_size: int) -> Position:
    return {"text": position.get("text", 0) + shard_size}


_worker: tuple[PocketReader, Encode] | None = None


def _init_worker(
    source: PocketSourceConfig, shard_size: int, tokenizer: str, eos_id: int, mask_prompt: bool
) -> None:
    global _worker
    loaded = Tokenizer.from_str(tokenizer)
    _worker = (
        PocketReader(source, shard_size),
        lambda examples: tokenize(examples, loaded, eos_id, mask_prompt=mask_prompt),
    )


def _read_shard(position: Position) -> list[Document]:
    assert _worker is not None
    reader, encode = _worker
    return encode(reader.read_shard(position)[0])
