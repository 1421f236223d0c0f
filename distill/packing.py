"""Tokens into sequences of one length: as one stream, or document by document.

Every position of a sequence has an input token, the token that follows it (its label) and whether that
label counts. A document of n tokens therefore fills n − 1 positions, and a stream loses none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from evalsuite.distill.readers import Example


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """Token ids [n] and which of them count as targets [n]."""

    tokens: NDArray[np.int32]
    counts: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One sequence: inputs, labels and counting labels, each [length], and the lengths of its documents.

    `lengths` adds up to `length`; in a stream it has one entry, since everything sees what came before.
    """

    inputs: NDArray[np.int32]
    labels: NDArray[np.int32]
    counts: NDArray[np.bool_]
    lengths: tuple[int, ...]


def tokenize(
    examples: Sequence[Example], tokenizer: Tokenizer, end: int, *, completions: bool
) -> list[Document]:
    """Token ids of `examples`, each closed by the token `end`.

    With `completions` only tokens that begin inside a marked piece count (and the closing token, which a
    model that answers must write too); without, every token does.
    """
    texts = [example.text for example in examples]
    if not completions:
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=True)
        return [
            _document(encoding.ids, None, example, end)
            for encoding, example in zip(encodings, examples, strict=True)
        ]
    documents = []
    for encoding, example in zip(
        tokenizer.encode_batch(texts, add_special_tokens=True), examples, strict=True
    ):
        borders = np.cumsum([len(piece) for piece, _ in example.pieces])
        marks = np.array([marked for _, marked in example.pieces], dtype=bool)
        starts = np.array([start for start, _ in encoding.offsets], dtype=np.int64)
        # A special token that the tokenizer adds has no place in the text: offsets (0, 0).
        ends = np.array([end for _, end in encoding.offsets], dtype=np.int64)
        piece = np.minimum(np.searchsorted(borders, starts, side="right"), len(marks) - 1)
        documents.append(_document(encoding.ids, marks[piece] & (ends > starts), example, end))
    return documents


def _document(ids: list[int], counts: NDArray[np.bool_] | None, example: Example, end: int) -> Document:
    tokens = np.array(ids, dtype=np.int32)
    kept = np.ones(len(ids), dtype=bool) if counts is None else counts
    if not example.closed and (len(ids) == 0 or ids[-1] != end):
        tokens = np.append(tokens, np.int32(end))
        kept = np.append(kept, bool(len(kept) and kept[-1]) if counts is not None else True)
    return Document(tokens, kept)


def echoed(document: Document, longest: int, spans: int | None = None) -> Document:
    """The document in pieces of an eighth of `longest` to `longest` tokens, each of them twice.

    With `spans` the second time in shuffled spans of a quarter of that to that many tokens, so that what
    comes after a span must be looked up anew. The document decides all lengths, so that no lag between a
    piece and its echo is the usual one.
    """
    generator = np.random.default_rng([len(document.tokens), *document.tokens[:8].tolist()])
    bounds = _bounds(0, len(document.tokens), longest // 8, longest, generator)
    order = []
    for start, end in pairwise(bounds):
        again = [np.arange(start, end)]
        if spans is not None:
            cuts = list(pairwise(_bounds(start, end, spans // 4, spans, generator)))
            again = [np.arange(*cuts[number]) for number in generator.permutation(len(cuts))]
        order += [np.arange(start, end), *again]
    kept = np.concatenate(order or [np.empty(0, dtype=np.int64)])
    return Document(document.tokens[kept], document.counts[kept])


def _bounds(start: int, end: int, least: int, most: int, generator: np.random.Generator) -> list[int]:
    """Borders of pieces of `least` to `most` from `start` to `end`; the last may be shorter."""
    bounds = [start]
    while bounds[-1] < end:
        bounds.append(min(end, bounds[-1] + int(generator.integers(max(1, least), most, endpoint=True))))
    return bounds


def pack_stream(documents: Sequence[Document], length: int) -> tuple[list[Row], list[Document]]:
    """Cut the documents, joined end to end, into rows; what is left over comes back as one document.

    Consecutive rows share one token: the last label of a row is the first input of the next.
    """
    if not documents:
        return [], []
    tokens = np.concatenate([document.tokens for document in documents])
    counts = np.concatenate([document.counts for document in documents])
    rows = []
    start = 0
    while start + length < len(tokens):
        piece = slice(start + 1, start + length + 1)
        rows.append(Row(tokens[start : start + length], tokens[piece], counts[piece], (length,)))
        start += length
    return rows, [Document(tokens[start:], counts[start:])]


def pack_documents(
    documents: Sequence[Document], length: int, pad: int, *, last: bool
) -> tuple[list[Row], list[Document]]:
    """Fill rows with whole documents (first fit, longest first); a longer one than a row is cut.

    The emptiest row's documents come back to be packed with the next ones, unless this is the `last` call.
    Places that stay empty are padding: a document of their own whose labels do not count.
    """
    pieces = [piece for document in documents for piece in _cut(document, length) if len(piece.tokens) > 1]
    pieces.sort(key=lambda piece: len(piece.tokens), reverse=True)
    rows: list[list[Document]] = []
    room: list[int] = []
    for piece in pieces:
        size = len(piece.tokens) - 1
        place = next((index for index, free in enumerate(room) if free >= size), None)
        if place is None:
            rows.append([piece])
            room.append(length - size)
        else:
            rows[place].append(piece)
            room[place] -= size
    kept: list[Document] = []
    if rows and not last and max(room) > 0:
        kept = rows.pop(int(np.argmax(room)))
    return [_joined(row, length, pad) for row in rows], kept


def _cut(document: Document, length: int) -> list[Document]:
    """Pieces of at most `length` positions; like the rows of a stream, neighbours share one token."""
    return [
        Document(document.tokens[start : start + length + 1], document.counts[start : start + length + 1])
        for start in range(0, max(1, len(document.tokens) - 1), length)
    ]


def _joined(documents: Sequence[Document], length: int, pad: int) -> Row:
    inputs = np.full(length, pad, dtype=np.int32)
    labels = np.full(length, pad, dtype=np.int32)
    counts = np.zeros(length, dtype=bool)
    lengths = []
    at = 0
    for document in documents:
        size = len(document.tokens) - 1
        inputs[at : at + size] = document.tokens[:-1]
        labels[at : at + size] = document.tokens[1:]
        counts[at : at + size] = document.counts[1:]
        lengths.append(size)
        at += size
    if at < length:
        lengths.append(length - at)
    return Row(inputs, labels, counts, tuple(lengths))
