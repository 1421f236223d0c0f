"""Tokenization, and packing of documents into sequences of fixed length.

Every position of a sequence has an input token, the next token (its label) and a flag that says whether the
label is in the loss. A document of n tokens therefore fills n − 1 positions; a concatenated stream loses
none.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evalsuite.distill.data.examples import Example
from evalsuite.models.checkpoints.tokenizers import TextEncoder


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """Token ids [n], loss mask [n] and second copies [n].

    `loss_mask`: whether each token is in the loss as a target. `second_copy`: whether each token belongs to
    the second copy of a chunk, see `repeat_spans`. `number`: place of the document in its batch of documents;
    None for leftovers of earlier batches.
    """

    tokens: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    second_copy: NDArray[np.bool_]
    number: int | None = None

    @property
    def has_loss(self) -> bool:
        """Whether any of its labels is in the loss; the first token is no label."""
        return bool(self.loss_mask[1:].any())

    def at(self, places: "slice | NDArray[np.int64]") -> "Document":
        """A document of the tokens at these places."""
        return replace(
            self,
            tokens=self.tokens[places],
            loss_mask=self.loss_mask[places],
            second_copy=self.second_copy[places],
        )


@dataclass(frozen=True, slots=True, eq=False)
class PackedSequence:
    """One training sequence: input ids, labels and loss mask, each [length], and the document lengths.

    `doc_lengths` sums to `length`; a sequence of a concatenated stream has one entry. `documents`: numbers of
    the documents that the inputs come from. `num_second_copy`: inputs that belong to second copies of chunks.
    `weights`: those of the labels in the loss, if they differ (see `token_weights`).
    """

    input_ids: NDArray[np.int32]
    labels: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    doc_lengths: tuple[int, ...]
    documents: tuple[int, ...] = ()
    num_second_copy: int = 0
    weights: NDArray[np.float32] | None = None


def tokenize(
    examples: Sequence[Example], encoder: TextEncoder, eos_id: int, *, mask_prompt: bool
) -> list[Document]:
    """Tokenize `examples`, each terminated by `eos_id`.

    With `mask_prompt`, only tokens with text of a completion segment are in the loss, also those that begin
    in the prompt, together with the end token that follows a completion; without it, all tokens are.
    """
    encodings = encoder.encode([example.text for example in examples], offsets=mask_prompt)
    documents = []
    for encoding, example in zip(encodings, examples, strict=True):
        tokens = np.array(encoding.ids, dtype=np.int32)
        mask = _completions(encoding.offsets, example) if mask_prompt else np.ones(len(tokens), dtype=bool)
        ends_in_loss = not mask_prompt or example.segments[-1][1]
        if len(tokens) and tokens[-1] == eos_id:
            # One that the tokenizer has added has no text.
            mask[-1] |= ends_in_loss
        elif not example.has_eos:
            tokens, mask = np.append(tokens, np.int32(eos_id)), np.append(mask, ends_in_loss)
        documents.append(Document(tokens, mask, np.zeros(len(tokens), dtype=bool)))
    return documents


def _completions(offsets: Sequence[tuple[int, int]], example: Example) -> NDArray[np.bool_]:
    """Whether each token has text of a completion segment."""
    lengths = np.array([len(text) for text, _ in example.segments])
    completions = lengths * np.array([marked for _, marked in example.segments])
    # Characters of completions before each place; a token has the difference of its two ends.
    places = np.array(offsets, dtype=np.int64).reshape(-1, 2)
    before = np.interp(places, np.cumsum([0, *lengths]), np.cumsum([0, *completions]))
    return np.asarray(before[:, 1] > before[:, 0])


def repeat_spans(document: Document, chunk_tokens: int, span_tokens: int | None = None) -> Document:
    """Split the document into chunks of chunk_tokens/8 to chunk_tokens tokens and write each chunk twice.

    With `span_tokens`, the second copy consists of shuffled spans of span_tokens/4 to span_tokens tokens, so
    that the continuation of every span has to be looked up. Lengths are seeded by the document's own tokens
    and vary, so that no fixed lag between a chunk and its copy can be learned.
    """
    generator = np.random.default_rng([len(document.tokens), *document.tokens[:8].tolist()])
    boundaries = _random_boundaries(0, len(document.tokens), chunk_tokens // 8, chunk_tokens, generator)
    order = []
    for start, end in pairwise(boundaries):
        copy = [np.arange(start, end)]
        if span_tokens is not None:
            spans = list(pairwise(_random_boundaries(start, end, span_tokens // 4, span_tokens, generator)))
            copy = [np.arange(*spans[number]) for number in generator.permutation(len(spans))]
        order += [np.arange(start, end), *copy]
    indices = np.concatenate(order or [np.empty(0, dtype=np.int64)])
    sizes = np.diff(boundaries)
    second_copy = np.repeat(np.tile([False, True], len(sizes)), np.repeat(sizes, 2))
    return replace(document.at(indices), second_copy=second_copy)


def _random_boundaries(
    start: int, end: int, shortest: int, longest: int, generator: np.random.Generator
) -> list[int]:
    """Boundaries from `start` to `end`, `shortest` to `longest` apart; the last interval may be shorter."""
    boundaries = [start]
    while boundaries[-1] < end:
        size = int(generator.integers(max(1, shortest), longest, endpoint=True))
        boundaries.append(min(end, boundaries[-1] + size))
    return boundaries


def pack_concat(documents: Sequence[Document], length: int) -> tuple[list[PackedSequence], list[Document]]:
    """Concatenate the documents and cut them into sequences; the leftover is returned as one document.

    Consecutive sequences share one token: the last label of one is the first input of the next.
    """
    if not documents:
        return [], []
    stream = Document(
        np.concatenate([document.tokens for document in documents]),
        np.concatenate([document.loss_mask for document in documents]),
        np.concatenate([document.second_copy for document in documents]),
    )
    ends = np.cumsum([len(document.tokens) for document in documents])
    starts = range(0, len(stream.tokens) - length, length)
    places = np.arange(len(starts)) * length
    firsts, lasts = (np.searchsorted(ends, places + shift, side="right") for shift in (0, length - 1))
    sequences = []
    for start, first, last in zip(starts, firsts, lasts, strict=True):
        piece = stream.at(slice(start, start + length + 1))
        sequences.append(replace(_join([piece], length, 0), documents=_numbers(documents[first : last + 1])))
    return sequences, [stream.at(slice(len(starts) * length, None))]


def pack_documents(
    documents: Sequence[Document], length: int, pad_id: int, *, last: bool
) -> tuple[list[PackedSequence], list[Document]]:
    """Pack whole documents into sequences (first fit, longest first); longer documents are split.

    Unless this is the `last` call, the documents of the emptiest sequence are returned as leftover, to be
    packed with the next batch of documents. Padding forms a document of its own that is not in the loss.
    """
    parts = [piece for document in documents for piece in _split(document, length) if len(piece.tokens) > 1]
    parts.sort(key=lambda piece: len(piece.tokens), reverse=True)
    bins: list[list[Document]] = []
    free: list[int] = []
    for piece in parts:
        size = len(piece.tokens) - 1
        index = next((index for index, space in enumerate(free) if space >= size), None)
        if index is None:
            bins.append([piece])
            free.append(length - size)
        else:
            bins[index].append(piece)
            free[index] -= size
    leftover: list[Document] = []
    if bins and not last and max(free) > 0:
        leftover = bins.pop(int(np.argmax(free)))
    return [_join(members, length, pad_id) for members in bins], leftover


def prompts_of(sequence: PackedSequence) -> list[list[int]]:
    """The prompts in a sequence of packed documents with completions in the loss: their tokens before the
    first one that is in the loss. A document without any, or that begins with one as a later piece of a long
    document can, has no prompt.
    """
    found = []
    for start, end in pairwise(np.cumsum([0, *sequence.doc_lengths])):
        in_loss = sequence.loss_mask[start:end].nonzero()[0]
        if len(in_loss) and in_loss[0] > 0:
            found.append(sequence.input_ids[start : start + in_loss[0] + 1].tolist())
    return found


def _split(document: Document, length: int) -> list[Document]:
    """Pieces of at most `length` positions; consecutive pieces share one token, as in a stream."""
    starts = range(0, max(1, len(document.tokens) - 1), length)
    return [document.at(slice(start, start + length + 1)) for start in starts]


def _join(documents: Sequence[Document], length: int, pad_id: int) -> PackedSequence:
    doc_lengths = [len(document.tokens) - 1 for document in documents]
    padding = length - sum(doc_lengths)

    def padded(rows: list[NDArray[Any]], value: int) -> NDArray[Any]:
        return np.concatenate([*rows, np.full(padding, value, dtype=rows[0].dtype)])

    return PackedSequence(
        padded([document.tokens[:-1] for document in documents], pad_id),
        padded([document.tokens[1:] for document in documents], pad_id),
        padded([document.loss_mask[1:] for document in documents], False),
        tuple(size for size in (*doc_lengths, padding) if size),
        _numbers(documents),
        sum(int(document.second_copy[:-1].sum()) for document in documents),
    )


def _numbers(documents: Sequence[Document]) -> tuple[int, ...]:
    return tuple(sorted({document.number for document in documents if document.number is not None}))
