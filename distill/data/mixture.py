"""Packed sequences of a source, and exact mixtures of several sources, resumable at any sequence."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evalsuite.distill.config import DataSourceConfig
from evalsuite.distill.data.documents import DocumentSource
from evalsuite.distill.data.packing import Document, PackedSequence, pack_concat, pack_documents
from evalsuite.distill.data.sources import Position, shuffled
from evalsuite.foundation import DataError


@dataclass
class PackedSourceState:
    """Position in the packed sequences of a source; small and JSON-serializable."""

    epoch: int = 0
    position: Position = field(default_factory=dict)
    """Position of the current shard in the reader."""
    shard: int = 0
    """Shards read in this epoch."""
    batch: int = 0
    """Batch of documents within the shard."""
    sequence: int = 0
    """Sequences of this batch that were already yielded."""
    leftover: list[tuple[list[int], list[bool]]] = field(default_factory=list)
    """Documents left over from earlier batches."""


def pack_source(
    name: str,
    source: DataSourceConfig,
    documents: DocumentSource,
    *,
    length: int,
    packing: str,
    pad_id: int,
    seed: int,
    state: dict[str, Any] | None = None,
) -> Iterator[tuple[PackedSequence, dict[str, Any]]]:
    """Yield the sequences of one source, each with the state after it; endless if the source is infinite.

    Raises:
        DataError: no document passes the source's filters.
    """
    at = PackedSourceState(**state) if state else PackedSourceState()
    leftover = [
        Document(np.array(tokens, dtype=np.int32), np.array(mask, dtype=bool)) for tokens, mask in at.leftover
    ]
    empty = state is None
    while True:
        batches, next_position = documents.read_shard(at.position, (seed, source.seed, at.epoch, at.shard))
        while at.batch < len(batches):
            members = [*leftover, *batches[at.batch]]
            empty = empty and not members
            if packing == "concat":
                sequences, remaining = pack_concat(members, length)
            else:
                last = next_position is None and at.batch == len(batches) - 1 and not source.infinite
                sequences, remaining = pack_documents(members, length, pad_id, last=last)
                # Packing sorts by length; unshuffled, some training batches would hold long documents only.
                sequences = shuffled(sequences, seed, source.seed, at.epoch, at.shard, at.batch)
            for number in range(at.sequence, len(sequences)):
                at.sequence = number + 1
                yield sequences[number], {**vars(at)}
            leftover = remaining
            at.leftover = [(document.tokens.tolist(), document.loss_mask.tolist()) for document in leftover]
            at.batch, at.sequence = at.batch + 1, 0
        at.batch, at.shard = 0, at.shard + 1
        if next_position is None:
            if empty:
                raise DataError(f"data source '{name}': no document is left after filtering")
            if not source.infinite:
                return
            at.epoch, at.shard, at.position = at.epoch + 1, 0, {}
        else:
            at.position = next_position


@dataclass
class MixtureState:
    """Number of sequences drawn from each source, and the position in each source."""

    num_drawn: dict[str, int] = field(default_factory=dict)
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)


def interleave(
    sources: dict[str, Iterator[tuple[PackedSequence, dict[str, Any]]]],
    shares: dict[str, float],
    state: dict[str, Any] | None = None,
) -> Iterator[tuple[PackedSequence, dict[str, Any]]]:
    """Yield sequences of several sources in fixed shares, each with the state after it.

    The next sequence comes from the source that is furthest behind its share. The ratio is therefore exact to
    one sequence at any point, without randomness. Iteration ends with the first source that ends.
    """
    at = MixtureState(**state) if state else MixtureState()
    while True:
        total = sum(at.num_drawn.values()) + 1
        name = max(shares, key=lambda name: shares[name] * total - at.num_drawn.get(name, 0))
        sequence, position = next(sources[name], (None, {}))
        if sequence is None:
            return
        at.num_drawn[name] = at.num_drawn.get(name, 0) + 1
        at.sources[name] = position
        yield sequence, {"num_drawn": {**at.num_drawn}, "sources": {**at.sources}}
