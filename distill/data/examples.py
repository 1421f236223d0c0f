"""Examples: what becomes of a row of a data source, and which rows are read."""

import hashlib
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from evalsuite.distill.data.chat import Render, conversation_segments, read_messages, with_thoughts
from evalsuite.distill.recipe import RECIPES
from evalsuite.distill.recipe.data_sources import TableSourceConfig
from evalsuite.foundation import DataError, nearest


@dataclass(frozen=True, slots=True)
class Example:
    """A training text in segments; `True` marks completion segments.

    `has_eos`: the text already ends with the model's end-of-turn or end-of-text token, but for white space.
    """

    segments: tuple[tuple[str, bool], ...]
    has_eos: bool = False

    @property
    def text(self) -> str:
        """The concatenated segments."""
        return "".join(text for text, _ in self.segments)

    @property
    def length(self) -> int:
        """Characters of the text."""
        return sum(len(text) for text, _ in self.segments)

    @property
    def first_turn(self) -> tuple[str, str]:
        """The text before the first completion segment, and this segment; both empty if there is none."""
        for number, (text, is_completion) in enumerate(self.segments):
            if is_completion:
                return "".join(before for before, _ in self.segments[:number]), text
        return "", ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation whose segments are not found yet, which takes further renderings: most conversations of
    a shuffle buffer may never be read.

    `length`: characters of its text. `place`: of its row, for messages.
    """

    messages: list[dict[str, Any]]
    length: int
    place: str

    def segmented(self, render: Render, end_tokens: tuple[str, ...]) -> Example:
        """The example. Raises as `conversation_segments` does.

        The text is rendered again: a shuffle buffer of texts and messages would be twice as large.

        Args:
            end_tokens: texts of the tokens that can end a conversation (see `chat.end_tokens`).
        """
        text = render(self.messages, False)
        segments = conversation_segments(self.messages, text, render)
        return Example(segments, text.rstrip().endswith(end_tokens))


Parsed = Example | Conversation


def parse_row(
    row: dict[str, Any], source: TableSourceConfig, render: Render | None, place: str = ""
) -> Parsed | None:
    """Convert a row; None if the source's filters drop it.

    Args:
        render: renders conversations; needed if the source has `messages`.
        place: of the row, for messages.

    Raises:
        DataError: a column is missing (with the nearest existing name) or has the wrong type, or the chat
            template refuses a conversation.
    """
    for column, wanted in source.where.items():
        value = _column(row, column)
        if isinstance(wanted, list):
            matches = value in wanted
        elif isinstance(wanted, str):
            matches = value == wanted
        elif value is None or isinstance(value, int | float):
            matches = value is not None and value >= wanted
        else:
            raise DataError(
                f"column '{column}' holds {type(value).__name__}, but 'where' compares it with {wanted}"
            )
        if not matches:
            return None
    if source.messages is not None:
        messages = read_messages(_column(row, source.messages), source.messages)
        messages = with_thoughts(messages, source.reasoning)
        assert render is not None
        text = render(messages, False)
        _check_unicode(text, source.messages)
        return Conversation(messages, len(text), place) if passes_filters(text, source) else None
    if source.prompt is not None and source.completion is not None:
        prompt, completion = _text(row, source.prompt), _text(row, source.completion)
        example = Example(((prompt, False), (completion, True)))
    else:
        example = Example(((_text(row, source.text), True),))
    return example if passes_filters(example.text, source) else None


HELD_OUT_MODULUS = 100
"""One document in this many is held out."""


def document_hash(text: str) -> int:
    """64-bit hash that identifies a document."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def passes_filters(text: str, source: TableSourceConfig) -> bool:
    """Whether a source includes a document; depends on its text only, not on its position."""
    if len(text) < source.min_characters:
        return False
    if source.subset == "all" and source.sample_fraction == 1 and source.exclude is None:
        return True
    number = document_hash(text)
    if source.subset != "all" and (number % HELD_OUT_MODULUS == 0) != (source.subset == "held_out"):
        return False
    # Independent of the bits that decide the subset, so that the fraction holds within each subset.
    start, end = source.sample_start, source.sample_start + source.sample_fraction
    if not round(start * 10_000) <= number // HELD_OUT_MODULUS % 10_000 < round(end * 10_000):
        return False
    return source.exclude is None or number not in load_exclusion_list(source.exclude)


@cache
def load_exclusion_list(name: str) -> frozenset[int]:
    """Document hashes from a file in the recipe folder, or from any path.

    Raises:
        DataError: the file is missing or contains anything other than hashes.
    """
    path = RECIPES / name if (RECIPES / name).is_file() else Path(os.path.expandvars(name)).expanduser()
    try:
        return frozenset(int(line, 16) for line in path.read_text().split())
    except (OSError, ValueError) as error:
        raise DataError(f"exclude: {path} is not a list of document hashes ({error})") from None


def _column(row: dict[str, Any], column: str) -> Any:
    if column not in row:
        raise DataError(f"there is no column '{column}'{nearest(column, row)}")
    return row[column]


def _text(row: dict[str, Any], column: str) -> str:
    value = _column(row, column)
    if not isinstance(value, str):
        raise DataError(f"column '{column}' holds {type(value).__name__}, not text")
    _check_unicode(value, column)
    return value


def _check_unicode(text: str, column: str) -> None:
    """Refuse halves of characters, which JSON can hold and no tokenizer encodes."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"column '{column}' holds text that is not Unicode ({error})") from None


Item = TypeVar("Item")


def shuffled(items: Sequence[Item], *key: int) -> list[Item]:
    """The items in an order that is determined by `key`."""
    order = list(items)
    random.Random(" ".join(map(str, key))).shuffle(order)
    return order
