"""Where examples come from: windows of rows in an order that a seed fixes and a position resumes.

A reader is asked for the window at a position and answers with its examples and the next position; a
position is small and JSON, so that a killed run reads on where it stopped.
"""

import glob
import hashlib
import json
import os
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from evalsuite.distill.chat import render_conversation
from evalsuite.distill.recipe import RECIPES, DataSource
from evalsuite.foundation import DataError, MissingDependencyError, nearest

Position = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Example:
    """A training text in pieces; `True` marks the pieces that a completion mask keeps.

    `closed` says that the text already ends as the model's texts end, so no end token is added.
    """

    pieces: tuple[tuple[str, bool], ...]
    closed: bool = False

    @property
    def text(self) -> str:
        """The pieces joined."""
        return "".join(piece for piece, _ in self.pieces)


class Reader(Protocol):
    """A source of examples."""

    def window(self, position: Position) -> tuple[list[Example], Position | None]:
        """Examples at `position` ({} is the start) and the next position; None after the last window."""


class PocketReader:
    """The pocket world's corpus: text number i is a function of the seed and i, so it never ends."""

    def __init__(self, source: DataSource, size: int) -> None:
        self._source, self._size = source, size

    def window(self, position: Position) -> tuple[list[Example], Position | None]:
        """See `Reader`."""
        from evalsuite.tasks.pocket import MIXTURE, texts

        source, start = self._source, position.get("text", 0)
        options: dict[str, Any] = {} if source.longest is None else {"longest": source.longest}
        made = texts(source.seed, source.split, mixture=source.kinds or MIXTURE, start=start, **options)  # type: ignore[arg-type]
        examples = [
            Example(tuple((part.text, part.answer) for part in text)) for text in islice(made, self._size)
        ]
        return examples, {"text": start + self._size}


class LocalReader:
    """Parquet and JSON-lines files of this disk, in sorted order, shuffled within a window."""

    def __init__(self, source: DataSource, name: str, size: int, chat_template: "Any") -> None:
        self._source, self._name, self._size, self._template = source, name, size, chat_template
        self._last: tuple[Position, tuple[list[Example], Position | None]] | None = None

    @cached_property
    def files(self) -> list[Path]:
        """The files that the patterns match.

        Raises:
            DataError: a pattern matches nothing, or a file is of another kind.
        """
        found: list[Path] = []
        for pattern in self._source.files:
            expanded = os.path.expandvars(os.path.expanduser(pattern))
            matches = sorted(Path(match) for match in glob.glob(expanded, recursive=True))
            if not matches:
                raise DataError(f"data source '{self._name}': no file matches '{expanded}'{_unset(expanded)}")
            found += matches
        for path in found:
            if not path.name.endswith((".parquet", ".jsonl", ".jsonl.zst")):
                raise DataError(
                    f"data source '{self._name}': {path} is neither .parquet, .jsonl nor .jsonl.zst"
                )
        return found

    def window(self, position: Position) -> tuple[list[Example], Position | None]:
        """See `Reader`. The last window is remembered."""
        if self._last is None or self._last[0] != position:
            self._last = ({**position}, self._read(position))
        return self._last[1]

    def _read(self, position: Position) -> tuple[list[Example], Position | None]:
        file, row = position.get("file", 0), position.get("row", 0)
        examples: list[Example] = []
        while file < len(self.files):
            rows = _file_rows(self.files[file], row)
            taken = 0
            for taken, values in enumerate(rows, 1):
                example = to_example(values, self._source, self._name, self._template)
                if example is not None:
                    examples.append(example)
                if len(examples) == self._size:
                    return examples, {"file": file, "row": row + taken}
            file, row = file + 1, 0
        return examples, None


def _file_rows(path: Path, start: int) -> Iterator[dict[str, Any]]:
    """Rows of one file from row `start`."""
    try:
        if path.suffix == ".parquet":
            yield from _parquet_rows(path, start)
        else:
            yield from _json_rows(path, start)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _parquet_rows(path: Path, start: int) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as parquet

    file = parquet.ParquetFile(path)
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if start >= rows:
            start -= rows
            continue
        yield from islice(file.read_row_group(group).to_pylist(), start, None)
        start = 0


def _json_rows(path: Path, start: int) -> Iterator[dict[str, Any]]:
    import pyarrow

    compression = "zstd" if path.suffix == ".zst" else None
    with pyarrow.input_stream(str(path), compression=compression) as raw:
        for line in islice(_lines(raw), start, None):
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"a row is {type(row).__name__}, not an object")
            yield row


def _lines(stream: Any) -> Iterator[bytes]:
    """Lines of a stream that offers only `read`."""
    rest = b""
    while block := stream.read(1 << 22):
        *lines, rest = (rest + block).split(b"\n")
        yield from (line for line in lines if line.strip())
    if rest.strip():
        yield rest


class HubReader:
    """A hub dataset, streamed; the stream's own state makes a resume cheap."""

    def __init__(self, source: DataSource, name: str, size: int, chat_template: Any) -> None:
        self._source, self._name, self._size, self._template = source, name, size, chat_template
        self._rows: Iterator[dict[str, Any]] | None = None
        self._at: Position | None = None

    @cached_property
    def _stream(self) -> Any:
        try:
            from datasets import load_dataset
        except ImportError:
            raise MissingDependencyError(
                f"data source '{self._name}': reading the hub needs `pip install datasets`"
            ) from None
        source = self._source
        try:
            return load_dataset(
                source.dataset, source.config, split=source.split, revision=source.revision, streaming=True
            )
        except (OSError, ValueError) as error:
            raise DataError(
                f"data source '{self._name}': {source.dataset} cannot be opened ({error})"
            ) from error

    def window(self, position: Position) -> tuple[list[Example], Position | None]:
        """See `Reader`."""
        if self._rows is None or self._at != position:
            if position:
                self._stream.load_state_dict(position["stream"])
            self._rows = iter(self._stream)
        examples: list[Example] = []
        try:
            for values in self._rows:
                example = to_example(values, self._source, self._name, self._template)
                if example is not None:
                    examples.append(example)
                if len(examples) == self._size:
                    self._at = {"stream": self._stream.state_dict()}
                    return examples, self._at
        except OSError as error:
            raise DataError(
                f"data source '{self._name}': {self._source.dataset} broke off ({error})"
            ) from error
        self._rows = None
        return examples, None


def open_reader(source: DataSource, name: str, chat_template: Any = None) -> Reader:
    """The reader of a source. `chat_template` renders its messages (see `chat.ChatTemplate`)."""
    if source.kind == "pocket":
        return PocketReader(source, POCKET_WINDOW)
    kind = LocalReader if source.kind == "local" else HubReader
    return kind(source, name, source.shuffle, chat_template)


POCKET_WINDOW = 1024
"""Texts of the pocket world made at a time; they are drawn independently, so nothing is to shuffle."""


def to_example(row: dict[str, Any], source: DataSource, name: str, chat_template: Any) -> Example | None:
    """The example in a row; None if the source's conditions drop it.

    Raises:
        DataError: a column is missing or is not of its kind; the message names both and the nearest one.
    """
    for column, wanted in source.where.items():
        value = _column(row, column, name)
        if isinstance(wanted, list):
            keep = value in wanted
        elif isinstance(wanted, str):
            keep = value == wanted
        else:
            keep = value is not None and value >= wanted
        if not keep:
            return None
    if source.messages is not None:
        messages = _column(row, source.messages, name)
        if not isinstance(messages, list) or not all(
            isinstance(turn, dict)
            and isinstance(turn.get("role"), str)
            and isinstance(turn.get("content"), str)
            for turn in messages
        ):
            raise DataError(
                f"data source '{name}': column '{source.messages}' is no list of {{role, content}}"
            )
        example = Example(render_conversation(messages, chat_template), closed=True)
    elif source.prompt is not None and source.completion is not None:
        prompt, completion = _text(row, source.prompt, name), _text(row, source.completion, name)
        example = Example(((prompt, False), (completion, True)))
    else:
        example = Example(((_text(row, source.text, name), True),))
    return example if _belongs(example.text, source) else None


HELD_OUT = 100
"""One document in so many is held out."""


def document_hash(text: str) -> int:
    """64 bits by which a document's text is known."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _belongs(text: str, source: DataSource) -> bool:
    """Whether a source keeps a document: its content decides, so that no order matters."""
    if len(text) < source.min_characters:
        return False
    if source.part == "all" and source.share == 1 and source.exclude is None:
        return True
    number = document_hash(text)
    if source.part != "all" and (number % HELD_OUT == 0) != (source.part == "held_out"):
        return False
    # Other bits than those that hold a document out, so that the share is one of either part.
    if number // HELD_OUT % 10_000 >= round(source.share * 10_000):
        return False
    return source.exclude is None or number not in excluded(source.exclude)


@cache
def excluded(name: str) -> frozenset[int]:
    """The documents that a list names: a file beside the shipped recipes, or any path.

    Raises:
        DataError: the file is missing or holds something else than hashes.
    """
    path = RECIPES / name if (RECIPES / name).is_file() else Path(os.path.expandvars(name)).expanduser()
    try:
        return frozenset(int(line, 16) for line in path.read_text().split())
    except (OSError, ValueError) as error:
        raise DataError(f"exclude: {path}: no list of documents ({error})") from None


def _unset(pattern: str) -> str:
    """What to say of a variable that had no value."""
    found = re.search(r"\$\{?(\w+)", pattern)
    return f" (${found[1]} is not set)" if found else ""


def _column(row: dict[str, Any], column: str, name: str) -> Any:
    if column not in row:
        raise DataError(f"data source '{name}': there is no column '{column}'{nearest(column, row)}")
    return row[column]


def _text(row: dict[str, Any], column: str, name: str) -> str:
    value = _column(row, column, name)
    if not isinstance(value, str):
        raise DataError(f"data source '{name}': column '{column}' holds {type(value).__name__}, not text")
    return value


Item = TypeVar("Item")


def shuffled(items: Sequence[Item], *key: int) -> list[Item]:
    """The items in an order that `key` alone decides."""
    order = list(items)
    random.Random(" ".join(map(str, key))).shuffle(order)
    return order
