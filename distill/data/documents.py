"""Tokenized documents of a source, in the order of training.

    rows → shards of examples, each in a shuffled order → groups of documents → tokens

The order is a function of the source, the seed and the position: neither the number of worker processes nor
the number of GPUs changes it. With several GPUs, every process reads all rows, since a shard is shuffled as a
whole; each tokenizes its share of every group and receives the tokens of the others, since a sequence starts
where the tokens before it end.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from evalsuite.distill.data.chunks import Position, Reader
from evalsuite.distill.data.examples import Parsed, shuffled
from evalsuite.distill.data.packing import Document
from evalsuite.distill.data.workers import WorkerPool
from evalsuite.distill.recipe.data_sources import DataSourceConfig, TableSourceConfig
from evalsuite.foundation import DataError

_log = logging.getLogger("evalsuite")

GROUP_SIZE = 512
"""Documents that are packed together."""
TASK_CHARACTERS = 1 << 18
"""Text that one task tokenizes; a longer document is a task of its own."""
POCKET_SHARD_SIZE = 1024
"""Texts per shard of the pocket corpus; they are drawn independently and need no shuffling."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Examples that are shuffled together: shard `number` of its epoch, from `position` in the source.

    `following`: position of the next shard; None after the last one of an epoch.
    """

    epoch: int
    number: int
    position: Position
    examples: list[Parsed]
    following: Position | None


@dataclass(frozen=True, slots=True)
class Group:
    """Batch `number` of the documents of a shard; `examples` is the share of this process.

    `is_last`: no documents follow in this epoch.
    """

    shard: Shard
    number: int
    examples: list[Parsed]
    is_last: bool


Exchange = Callable[[list[Document]], list[Document]]
"""Documents of this process' share of a group → all documents of the group, in order."""


@dataclass
class Share:
    """The part of every group that this process tokenizes, and how it receives the others."""

    rank: int = 0
    world_size: int = 1
    exchange: Exchange = lambda documents: documents


class SourceDocuments:
    """The documents of one source; stages share it, and with it what an iteration began with.

    Args:
        name: for messages.
        seed: of the recipe.
    """

    def __init__(
        self, name: str, source: DataSourceConfig, reader: Reader, pool: WorkerPool, seed: int
    ) -> None:
        self.source, self.seed = source, seed
        self._name, self._reader, self._pool = name, reader, pool
        self._warned: set[str] = set()
        self._first: Shard | None = None
        """The shard that an iteration began with: validation reads it, and the first stage needs it again."""
        self._tokenized: dict[bool, tuple[tuple[Any, ...], list[Document]]] = {}
        """By `mask_prompt`, where an iteration began, and this process' share of the first group, as long as
        its shard is remembered."""

    def groups(
        self,
        *,
        epoch: int = 0,
        shard: int = 0,
        position: Position | None = None,
        number: int = 0,
        share: Share,
        mask_prompt: bool,
    ) -> Iterator[tuple[Group, list[Document]]]:
        """Yield groups of tokenized documents from a place in the source; endless if it is infinite.

        Raises:
            DataError: no document passes the source's filters, or a row cannot be read or tokenized.
        """
        position = position or self._reader.start()
        groups = self._read_groups(self._shards(epoch, shard, position), number, share)
        place = (epoch, shard, position, number, share)
        # Apart from the others, of which validation needs none.
        for group in islice(groups, 1):
            yield group, share.exchange(self._first_documents(group, place, mask_prompt))
        for group, own in self._tokenize(groups, mask_prompt):
            yield group, share.exchange(own)

    def prepare(self, share: Share, masks: Iterable[bool]) -> None:
        """Read and tokenize what `groups` from the start begins with, and remember it.

        Raises:
            As `groups`, which then raises it as well.
        """
        position = self._reader.start()
        for group in islice(self._read_groups(self._shards(0, 0, position), 0, share), 1):
            for mask_prompt in masks:
                self._first_documents(group, (0, 0, position, 0, share), mask_prompt)

    def _first_documents(self, group: Group, place: tuple[Any, ...], mask_prompt: bool) -> list[Document]:
        """The documents of the group that an iteration from `place` begins with."""
        remembered, own = self._tokenized.get(mask_prompt, (None, []))
        if remembered != place:
            ((_, own),) = self._tokenize([group], mask_prompt)
            self._tokenized[mask_prompt] = place, own
        return own

    def _tokenize(self, groups: Iterable[Group], mask_prompt: bool) -> Iterator[tuple[Group, list[Document]]]:
        """Yield groups with the documents of their examples."""
        tasks = (
            ((group, is_end), (self._name, examples, mask_prompt))
            for group in groups
            for examples, is_end in _pieces(group.examples)
        )
        own: list[Document] = []
        for (group, is_end), documents in self._pool.map("tokenize", tasks):
            own += documents
            if is_end:
                yield group, own
                own = []

    def warn_without_loss(self, count: int, without_loss: int) -> None:
        """Say once that documents are read from which nothing is learned."""
        if "loss" not in self._warned:
            self._warned.add("loss")
            _log.warning(
                "data source '%s': %d of the first %d documents have no token in the loss: completions are "
                "empty, or the chat template rewrites them; lineage.json will count all",
                self._name,
                without_loss,
                count,
            )

    def whole(self, documents: Sequence[Document], length: int) -> list[Document]:
        """The documents that fit into a sequence of `length` tokens; says once that others are left out.

        Raises:
            DataError: none does.
        """
        found = [each for each in documents if len(each.tokens) <= length + 1]
        if documents and not found:
            raise DataError(
                f"data source '{self._name}': all of {len(documents)} documents are longer than a sequence "
                f"of {length} tokens, so that students cannot continue their prompts; raise 'seq_len'"
            )
        if len(found) < len(documents) and "length" not in self._warned:
            self._warned.add("length")
            _log.warning(
                "data source '%s': %d of the first %d documents are longer than a sequence of %d tokens and "
                "are left out, since students cannot continue their prompts",
                self._name,
                len(documents) - len(found),
                len(documents),
                length,
            )
        return found

    def _read_groups(self, shards: Iterator[Shard | int], first: int, share: Share) -> Iterator[Group]:
        """Cut shards into groups; with every group, as many examples are read ahead as it has."""
        ahead: deque[Shard] = deque()
        num_partial = 0
        shard = _complete(shards)
        while shard is not None:
            examples = self._ordered(shard)
            num_groups = -(-len(examples) // GROUP_SIZE)
            for number in range(first, num_groups):
                end = min(len(examples), (number + 1) * GROUP_SIZE)
                members = examples[number * GROUP_SIZE : end]
                is_last = shard.following is None and number == num_groups - 1
                yield Group(shard, number, members[share.rank :: share.world_size], is_last)
                num_read = len(examples) - end + sum(len(each.examples) for each in ahead)
                while num_read + num_partial < self._shard_size:
                    found = next(shards, None)
                    if found is None:
                        break
                    if isinstance(found, int):
                        num_partial = found
                    else:
                        ahead.append(found)
                        num_read, num_partial = num_read + len(found.examples), 0
            shard, first = ahead.popleft() if ahead else _complete(shards), 0

    def _ordered(self, shard: Shard) -> list[Parsed]:
        if not isinstance(self.source, TableSourceConfig):
            return shard.examples
        return shuffled(shard.examples, self.seed, self.source.seed, shard.epoch, shard.number)

    def _shards(self, epoch: int, number: int, position: Position) -> Iterator[Shard | int]:
        """Yield shards of this and later epochs and, in between, how many examples of the next are read."""
        is_empty = number == 0
        while True:
            for found in self._read_epoch(position):
                if isinstance(found, int):
                    yield found
                    continue
                is_empty = is_empty and not found.examples
                yield replace(found, epoch=epoch, number=number)
                number += 1
            if is_empty:
                raise DataError(f"data source '{self._name}': no document is left after filtering")
            if not self.source.is_infinite:
                return
            epoch, number, position, is_empty = epoch + 1, 0, self._reader.start(), True

    def _read_epoch(self, position: Position) -> Iterator[Shard | int]:
        """Yield the shards from `position` to the end of an epoch, numbered from there, as `_shards` does."""
        first, start = self._first, position
        if first is not None and first.position == position:
            yield first
            if first.following is None:
                return
            start = first.following
        chunks = self._reader.chunks(start)
        examples: list[Parsed] = []
        for chunk, parsed in self._pool.map("parse", ((chunk, (self._name, chunk)) for chunk in chunks)):
            for row, example in enumerate(parsed, 1):
                if example is None:
                    continue
                examples.append(example)
                if len(examples) == self._shard_size:
                    following = chunk.position_after(row)
                    yield self._remember(Shard(0, 0, start, examples, following), position)
                    start, examples = following, []
            yield len(examples)
        yield self._remember(Shard(0, 0, start, examples, None), position)

    def _remember(self, shard: Shard, beginning: Position) -> Shard:
        """Remember the first shard of an iteration, until the second one is read."""
        self._first = shard if shard.position == beginning else None
        self._tokenized.clear()
        return shard

    @property
    def _shard_size(self) -> int:
        if isinstance(self.source, TableSourceConfig):
            return self.source.shuffle_buffer_size
        return POCKET_SHARD_SIZE


def _complete(shards: Iterator[Shard | int]) -> Shard | None:
    """The next shard; None if there is none."""
    return next((found for found in shards if not isinstance(found, int)), None)


def _pieces(examples: Sequence[Parsed]) -> Iterator[tuple[Sequence[Parsed], bool]]:
    """Cut examples into pieces of TASK_CHARACTERS, each with whether it is the last; at least one piece."""
    start = size = 0
    for end, example in enumerate(examples, 1):
        size += example.length
        if size >= TASK_CHARACTERS and end < len(examples):
            yield examples[start:end], False
            start, size = end, 0
    yield examples[start:], True
