"""Packed sequences of a source, and exact mixtures of several sources, resumable at any sequence."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evalsuite.distill.data.chunks import Position
from evalsuite.distill.data.documents import Share, SourceDocuments
from evalsuite.distill.data.examples import shuffled
from evalsuite.distill.data.packing import Document, PackedSequence, pack_concat, pack_documents


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
    leftover: list[tuple[list[int], list[bool], list[bool]]] = field(default_factory=list)
    """Documents left over from earlier batches: tokens, loss mask and second copies."""
    used: list[int] = field(default_factory=list)
    """Documents of this batch in the sequences that were already yielded."""
    skipped: list[int] = field(default_factory=list)
    """Documents of this batch that an earlier stage has used."""
    documents_before: list[int] = field(default_factory=lambda: [0, 0])
    """Documents of earlier batches, and those of them without a token in the loss."""
    documents: list[int] = field(default_factory=lambda: [0, 0])
    """The same with those of this batch."""
    tokens: int = 0
    """Tokens of the first epoch that were yielded since the start of the source, over all stages, without
    second copies of chunks."""
    distinct: int = 0
    """The most of these since training began: a stage that restarts a source reads the same tokens again."""

    def count_documents(self, documents: Sequence[Document]) -> None:
        """Count the documents of this batch, once however often it is read."""
        total, without_loss = self.documents_before
        missing = sum(not document.has_loss for document in documents)
        self.documents = [total + len(documents), without_loss + missing]

    def count(self, sequence: PackedSequence) -> None:
        """Record a sequence as yielded."""
        self.sequence += 1
        self.used = sorted({*self.used, *sequence.documents})
        if self.epoch == 0:
            self.tokens += len(sequence.input_ids) - sequence.num_second_copy
            self.distinct = max(self.distinct, self.tokens)


def start_of_stage(previous: dict[str, Any] | None, *, restart: bool) -> dict[str, Any] | None:
    """The state in which a stage starts a source that earlier stages left in state `previous`.

    The stage reads the documents that no earlier sequence has used, since it may pack them differently.
    """
    if previous is None:
        return None
    at = PackedSourceState(**previous)
    if restart:
        return vars(
            PackedSourceState(distinct=at.distinct, documents_before=at.documents, documents=at.documents)
        )
    skipped = sorted({*at.skipped, *at.used})
    return vars(replace(at, sequence=0, leftover=[], used=[], skipped=skipped))


def distinct_tokens(sources: Mapping[str, dict[str, Any]]) -> int:
    """Tokens read from these sources, without those that were read before.

    Those are tokens of a later epoch, of a stage that restarts a source, and of second copies of chunks.
    Padding is counted, as it is among all tokens; text that two sources share is counted for each.
    """
    return sum(PackedSourceState(**state).distinct for state in sources.values())


def documents_without_loss(sources: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Source → its documents that were read, and those of them without a token in the loss, if there are any.

    Nothing is learned from such a document, as from a completion that is empty or a turn that a chat template
    rewrites.
    """
    states = {name: PackedSourceState(**state) for name, state in sources.items()}
    return {
        name: {"documents": state.documents[0], "without_loss": state.documents[1]}
        for name, state in states.items()
        if state.documents[1]
    }


def pack_source(
    documents: SourceDocuments,
    *,
    share: Share,
    mask_prompt: bool,
    length: int,
    packing: str,
    pad_id: int,
    whole_only: bool = False,
    state: dict[str, Any] | None = None,
) -> Iterator[tuple[PackedSequence, dict[str, Any]]]:
    """Yield the sequences of one source, each with the state after it; endless if the source is infinite.

    Args:
        share, mask_prompt: see `SourceDocuments.groups`.
        length: of a sequence, in tokens.
        whole_only: leave out documents that are longer, instead of splitting them.

    Raises:
        DataError: as `SourceDocuments.groups` and, with `whole_only`, `SourceDocuments.whole`.
    """
    source, seed = documents.source, documents.seed
    at = PackedSourceState(**state) if state else PackedSourceState()
    leftover = [
        Document(np.array(tokens, dtype=np.int32), np.array(mask, dtype=bool), np.array(second, dtype=bool))
        for tokens, mask, second in at.leftover
    ]
    groups = documents.groups(
        epoch=at.epoch,
        shard=at.shard,
        position=at.position,
        number=at.batch,
        share=share,
        mask_prompt=mask_prompt,
    )
    for group, tokenized in groups:
        shard = group.shard
        at.epoch, at.shard, at.position, at.batch = shard.epoch, shard.number, shard.position, group.number
        at.count_documents(tokenized)
        if at.documents[1] and share.rank == 0:
            documents.warn_without_loss(*at.documents)
        numbered = (replace(each, number=number) for number, each in enumerate(tokenized))
        members = [*leftover, *(each for each in numbered if each.number not in at.skipped)]
        if whole_only:
            members = documents.whole(members, length)
        if packing == "concat":
            sequences, remaining = pack_concat(members, length)
        else:
            sequences, remaining = pack_documents(
                members, length, pad_id, last=group.is_last and not source.is_infinite
            )
            # Packing sorts by length; unshuffled, some training batches would hold long documents only.
            sequences = shuffled(sequences, seed, source.seed, at.epoch, at.shard, at.batch)
        for sequence in sequences[at.sequence :]:
            at.count(sequence)
            yield sequence, {**vars(at)}
        leftover = [replace(document, number=None) for document in remaining]
        at.leftover = [
            (document.tokens.tolist(), document.loss_mask.tolist(), document.second_copy.tolist())
            for document in leftover
        ]
        at.used, at.skipped, at.sequence = [], [], 0
        at.documents_before = at.documents


def furthest_behind(shares: Mapping[str, float], num_drawn: Mapping[str, int]) -> str:
    """The source that the next sequence comes from, after `num_drawn` of each."""
    total = sum(num_drawn.values()) + 1
    return max(shares, key=lambda name: shares[name] * total - num_drawn.get(name, 0))


def interleave(
    sources: dict[str, Iterator[tuple[PackedSequence, dict[str, Any]]]],
    shares: dict[str, float],
    state: dict[str, Any] | None = None,
) -> Iterator[tuple[PackedSequence, dict[str, Any]]]:
    """Yield sequences of several sources in fixed shares, each with the state after it.

    The next sequence comes from the source that is furthest behind its share. The ratio is therefore exact to
    one sequence at any point, without randomness. Iteration ends with the first source that ends. The state
    has the number of sequences drawn from each source, and the position in each source.
    """
    num_drawn, positions = ({**(state or {}).get(key, {})} for key in ("num_drawn", "sources"))
    while True:
        name = furthest_behind(shares, num_drawn)
        sequence, position = next(sources[name], (None, {}))
        if sequence is None:
            return
        num_drawn[name] = num_drawn.get(name, 0) + 1
        positions[name] = position
        yield sequence, {"num_drawn": {**num_drawn}, "sources": {**positions}}
