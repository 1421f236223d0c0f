"""Data sources: readers that return shards of examples at a resumable position.

The order of examples is fixed by the seed. A position is a small JSON value; reading again from a saved
position returns the same examples, so that an interrupted run continues where it stopped.
"""

import glob
import hashlib
import json
import os
import random
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

from evalsuite.distill.data.chat import read_messages, render_conversation
from evalsuite.distill.data.config import (
    DataSourceConfig,
    HubSourceConfig,
    LocalSourceConfig,
    PocketSourceConfig,
    TableSourceConfig,
)
from evalsuite.distill.recipe import RECIPES
from evalsuite.foundation import DataError, MissingDependencyError, nearest

PARQUET_BATCH_ROWS = 1024
"""Rows of a parquet file that are converted to Python objects together."""
Position = dict[str, Any]
Shard = tuple[list["Example"], Position | None]
"""Examples, and the position of the next shard; None after the last one."""


@dataclass(frozen=True, slots=True)
class Example:
    """A training text in segments; `True` marks completion segments.

    `has_eos`: the text already ends with the model's end-of-turn or end-of-text token.
    """

    segments: tuple[tuple[str, bool], ...]
    has_eos: bool = False

    @property
    def text(self) -> str:
        """The concatenated segments."""
        return "".join(text for text, _ in self.segments)


class Reader(Protocol):
    """A source of examples."""

    def read_shard(self, position: Position) -> Shard:
        """The shard at `position` ({} is the start)."""


class PocketReader:
    """The synthetic pocket corpus, which is infinite: text number i is a function of the seed and i."""

    def __init__(self, source: PocketSourceConfig, shard_size: int) -> None:
        self._source, self._shard_size = source, shard_size

    def read_shard(self, position: Position) -> Shard:
        """See `Reader`."""
        from evalsuite.tasks.synthetic.pocket import MIXTURE, texts

        source, start = self._source, position.get("text", 0)
        options: dict[str, Any] = {}
        if source.max_haystack_tokens is not None:
            options["longest"] = source.max_haystack_tokens
        stream = texts(source.seed, source.split, mixture=source.mixture or MIXTURE, start=start, **options)  # type: ignore[arg-type]
        examples = [
            Example(tuple((segment.text, segment.answer) for segment in text))
            for text in islice(stream, self._shard_size)
        ]
        return examples, {"text": start + self._shard_size}


class LocalReader:
    """Local parquet and JSON-lines files, in sorted order. Shards are shuffled by the caller.

    A file stays open between shards, so that an epoch reads it once; only a resumed reader skips rows.
    """

    def __init__(self, source: LocalSourceConfig, name: str, shard_size: int, chat_template: Any) -> None:
        self._source, self._name, self._shard_size = source, name, shard_size
        self._template = chat_template
        self._last: tuple[Position, Shard] | None = None
        self._open: tuple[int, int, Iterator[dict[str, Any]]] | None = None
        """File, next row, and iterator over the remaining rows."""

    @cached_property
    def files(self) -> list[Path]:
        """The files that match the patterns.

        Raises:
            DataError: a pattern matches no file, or a file has an unsupported format.
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
                    f"data source '{self._name}': {path} is not a .parquet, .jsonl or .jsonl.zst file"
                )
        return found

    def read_shard(self, position: Position) -> Shard:
        """See `Reader`. The most recent shard is cached."""
        if self._last is None or self._last[0] != position:
            self._last = ({**position}, self._read(position))
        return self._last[1]

    def _read(self, position: Position) -> Shard:
        file, row = position.get("file", 0), position.get("row", 0)
        examples: list[Example] = []
        while file < len(self.files):
            rows = self._rows_from(file, row)
            num_read = 0
            for num_read, values in enumerate(rows, 1):
                example = parse_row(values, self._source, self._name, self._template)
                if example is not None:
                    examples.append(example)
                if len(examples) == self._shard_size:
                    self._open = file, row + num_read, rows
                    return examples, {"file": file, "row": row + num_read}
            file, row = file + 1, 0
        return examples, None

    def _rows_from(self, file: int, row: int) -> Iterator[dict[str, Any]]:
        """Rows of one file from `row`: those of the open file if it is there already."""
        opened, self._open = self._open, None
        if opened is not None and opened[:2] == (file, row):
            return opened[2]
        return _file_rows(self.files[file], row, self._source.columns)


def _file_rows(path: Path, start: int, columns: Collection[str]) -> Iterator[dict[str, Any]]:
    """Rows of one file from row `start`."""
    try:
        if path.suffix == ".parquet":
            yield from _parquet_rows(path, start, columns)
        else:
            yield from _json_rows(path, start)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _parquet_rows(path: Path, start: int, columns: Collection[str]) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as parquet

    with parquet.ParquetFile(path) as file:
        existing = set(file.schema_arrow.names)
        # If one is missing, `parse_row` suggests the nearest of all columns.
        chosen = sorted(columns) if existing.issuperset(columns) else None
        group = 0
        while group < file.num_row_groups and start >= file.metadata.row_group(group).num_rows:
            start -= file.metadata.row_group(group).num_rows
            group += 1
        groups = range(group, file.num_row_groups)
        for batch in file.iter_batches(PARQUET_BATCH_ROWS, row_groups=groups, columns=chosen):
            yield from batch.slice(min(start, batch.num_rows)).to_pylist()
            start = max(0, start - batch.num_rows)


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
    """Non-empty lines of a stream that only supports `read`."""
    rest = b""
    while block := stream.read(1 << 22):
        *lines, rest = (rest + block).split(b"\n")
        yield from (line for line in lines if line.strip())
    if rest.strip():
        yield rest


class HubReader:
    """A streamed hub dataset; positions hold the stream's own state, which makes resuming cheap."""

    def __init__(self, source: HubSourceConfig, name: str, shard_size: int, chat_template: Any) -> None:
        self._source, self._name, self._shard_size = source, name, shard_size
        self._template = chat_template
        self._stream: Any = None
        self._rows: Iterator[dict[str, Any]] | None = None
        self._position: Position | None = None

    def _open(self) -> Any:
        try:
            from datasets import load_dataset
        except ImportError:
            raise MissingDependencyError(
                f"data source '{self._name}': streaming from the hub needs `pip install datasets`"
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

    def read_shard(self, position: Position) -> Shard:
        """See `Reader`."""
        if self._rows is None or self._position != position:
            # A stream applies a loaded state in every later epoch too, so each epoch opens its own.
            self._stream = self._open()
            if position:
                self._stream.load_state_dict(position["stream"])
            self._rows = iter(self._stream)
        examples: list[Example] = []
        try:
            for values in self._rows:
                example = parse_row(values, self._source, self._name, self._template)
                if example is not None:
                    examples.append(example)
                if len(examples) == self._shard_size:
                    self._position = {"stream": self._stream.state_dict()}
                    return examples, self._position
        except OSError as error:
            raise DataError(
                f"data source '{self._name}': reading {self._source.dataset} failed ({error})"
            ) from error
        self._rows = None
        return examples, None


POCKET_SHARD_SIZE = 1024
"""Texts per shard of the pocket corpus; they are drawn independently and need no shuffling."""


def open_reader(source: DataSourceConfig, name: str, chat_template: Any = None) -> Reader:
    """Open a source. `chat_template` renders its messages (see `chat.chat_renderer`)."""
    match source:
        case PocketSourceConfig():
            return PocketReader(source, POCKET_SHARD_SIZE)
        case LocalSourceConfig():
            return LocalReader(source, name, source.shuffle_buffer_size, chat_template)
        case HubSourceConfig():
            return HubReader(source, name, source.shuffle_buffer_size, chat_template)
    raise DataError(f"data source '{name}': {source.kind} has no documents yet; they are generated first")


def parse_row(
    row: dict[str, Any], source: TableSourceConfig, name: str, chat_template: Any
) -> Example | None:
    """Convert a row to an example; None if the source's filters drop it.

    Raises:
        DataError: a column is missing (with the nearest existing name) or has the wrong type.
    """
    for column, wanted in source.where.items():
        value = _column(row, column, name)
        if isinstance(wanted, list):
            matches = value in wanted
        elif isinstance(wanted, str):
            matches = value == wanted
        else:
            matches = value is not None and value >= wanted
        if not matches:
            return None
    if source.messages is not None:
        messages = read_messages(
            _column(row, source.messages, name), f"data source '{name}'", source.messages
        )
        example = Example(render_conversation(messages, chat_template), has_eos=True)
    elif source.prompt is not None and source.completion is not None:
        prompt, completion = _text(row, source.prompt, name), _text(row, source.completion, name)
        example = Example(((prompt, False), (completion, True)))
    else:
        example = Example(((_text(row, source.text, name), True),))
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
    if number // HELD_OUT_MODULUS % 10_000 >= round(source.sample_fraction * 10_000):
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


def _unset(pattern: str) -> str:
    """A hint that names an environment variable that was not expanded."""
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
    """The items in an order that is determined by `key`."""
    order = list(items)
    random.Random(" ".join(map(str, key))).shuffle(order)
    return order
