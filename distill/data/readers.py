"""Readers: the rows of a data source in chunks, from any position.

A position is a small JSON value: it says where a row is, and what the source looked like when it was read, so
that an interrupted run continues with the same rows or is told that they have changed.
"""

import glob
import hashlib
import io
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from evalsuite.distill.recipe.data_sources import (
    DataSourceConfig,
    HubSourceConfig,
    LocalSourceConfig,
    PocketSourceConfig,
)
from evalsuite.foundation import DataError, MissingDependencyError

CHUNK_ROWS = 256
"""Rows that are read and parsed together."""
READ_BYTES = 1 << 22
"""Of a file of lines, at a time."""
Position = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows that are parsed together, possibly in another process (see `preparation`).

    `rows`: lines of JSON, an Arrow record batch, dictionaries, or numbers of pocket texts. `position`: of the
    first row; its key `counter` counts rows. `file`: where the rows are, for messages.
    """

    rows: Any
    position: Position
    counter: str
    file: str = ""

    def place(self, number: int) -> str:
        """Where row `number` of the chunk is, counted from 1 without blank lines, for messages."""
        first = self.position.get("row", 0) + self.position.get("skip", 0)
        return f"{self.file}, row {first + number + 1}"

    def position_after(self, rows: int) -> Position:
        """Position of the row that follows the first `rows` rows."""
        return {**self.position, self.counter: self.position.get(self.counter, 0) + rows}


class Reader(Protocol):
    """A source of rows."""

    def start(self) -> Position:
        """Position of the first row.

        Raises:
            DataError: the source cannot be opened.
        """

    def chunks(self, position: Position) -> Iterator[Chunk]:
        """The rows from `position` to the end of the source.

        Raises:
            DataError: a row cannot be read, or the source has changed since the position was saved.
        """


def open_reader(source: DataSourceConfig, name: str) -> Reader:
    """Open a source, which is called `name` in messages."""
    match source:
        case PocketSourceConfig():
            return PocketReader()
        case LocalSourceConfig():
            return LocalReader(source, name)
        case HubSourceConfig():
            return HubReader(source, name)
    raise DataError(f"data source '{name}': {source.kind} has no documents until they are generated")


class PocketReader:
    """Numbers of the texts of the pocket corpus, which is infinite."""

    def start(self) -> Position:
        return {}

    def chunks(self, position: Position) -> Iterator[Chunk]:
        first = position.get("text", 0)
        while True:
            yield Chunk(range(first, first + CHUNK_ROWS), {"text": first}, "text")
            first += CHUNK_ROWS


class LocalReader:
    """Local parquet and JSON-lines files, in sorted order. Every file is read once per pass."""

    def __init__(self, source: LocalSourceConfig, name: str) -> None:
        self._source, self._name = source, name

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

    @cached_property
    def _fingerprints(self) -> list[list[str]]:
        return [[path.name, _fingerprint(path)] for path in self.files]

    def start(self) -> Position:
        return {"file": 0, "row": 0, "files": self._fingerprints}

    def chunks(self, position: Position) -> Iterator[Chunk]:
        self._check_unchanged(position["files"])
        first = position["row"]
        for number in range(position["file"], len(self.files)):
            path = self.files[number]
            row = first
            for rows in file_chunks(path, first, self._source.columns):
                yield Chunk(rows, {**position, "file": number, "row": row}, "row", str(path))
                row += len(rows)
            first = 0

    def _check_unchanged(self, saved: list[list[str]]) -> None:
        if saved == self._fingerprints:
            return
        way_out = "restore the files, or start in a new folder"
        if len(saved) != len(self.files):
            raise DataError(
                f"data source '{self._name}': {len(self.files)} files match, but the training state was "
                f"saved with {len(saved)}; {way_out}"
            )
        changed = [
            str(path)
            for path, now, then in zip(self.files, self._fingerprints, saved, strict=True)
            if now != then
        ]
        raise DataError(
            f"data source '{self._name}': {', '.join(changed[:3])} "
            f"{'is' if len(changed) == 1 else 'are'} not what the training state was saved with; {way_out}"
        )


FINGERPRINT_BYTES = 1 << 16
"""Bytes at the start and at the end of a file that its fingerprint covers."""


def _fingerprint(path: Path) -> str:
    """16 hex digits over the size, the start and the end of a file."""
    try:
        size = path.stat().st_size
        digest = hashlib.blake2b(str(size).encode(), digest_size=8)
        with open(path, "rb") as file:
            digest.update(file.read(FINGERPRINT_BYTES))
            file.seek(max(0, size - FINGERPRINT_BYTES))
            digest.update(file.read(FINGERPRINT_BYTES))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    return digest.hexdigest()


def file_chunks(path: Path, start: int = 0, columns: Collection[str] = ()) -> Iterator[Any]:
    """Rows of one file from row `start`, in chunks: lines, or Arrow record batches of those columns."""
    try:
        if path.suffix == ".parquet":
            yield from _parquet_chunks(path, start, columns)
        else:
            yield from _line_chunks(path, start)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


def _parquet_chunks(path: Path, start: int, columns: Collection[str]) -> Iterator[Any]:
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
        for batch in file.iter_batches(CHUNK_ROWS, row_groups=groups, columns=chosen):
            rows = batch.slice(min(start, batch.num_rows))
            if rows.num_rows:
                yield rows
            start = max(0, start - batch.num_rows)


def _line_chunks(path: Path, start: int) -> Iterator[list[bytes]]:
    import pyarrow

    compression = "zstd" if path.suffix == ".zst" else None
    with pyarrow.input_stream(str(path), compression=compression) as raw:
        lines = islice(filter(bytes.strip, io.BufferedReader(raw, READ_BYTES)), start, None)
        while chunk := list(islice(lines, CHUNK_ROWS)):
            yield chunk


class HubReader:
    """A streamed hub dataset.

    A position holds the stream's own state, which makes resuming cheap, the row it is at, the rows after it
    that were read, and the commit, so that a dataset that changes on the hub does not change a run.
    """

    def __init__(self, source: HubSourceConfig, name: str) -> None:
        self._source, self._name = source, name

    def start(self) -> Position:
        revision = self._source.revision or self._current_commit()
        return {} if revision is None else {"revision": revision}

    def _current_commit(self) -> str | None:
        """The dataset's current commit; None for a local folder and without a network."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import OfflineModeIsEnabled

        dataset = self._source.dataset
        if Path(dataset).exists():
            return None
        with self._named_errors("opened"):
            try:
                return HfApi().dataset_info(dataset).sha
            except OfflineModeIsEnabled:
                return None

    def _open(self, revision: str | None) -> Any:
        try:
            from datasets import load_dataset
        except ImportError:
            raise MissingDependencyError(
                f"data source '{self._name}': streaming from the hub needs `pip install datasets`"
            ) from None
        source = self._source
        with self._named_errors("opened"):
            return load_dataset(
                source.dataset, source.config, split=source.split, revision=revision, streaming=True
            )

    @contextmanager
    def _named_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # datasets and the hub's client pass on errors of their HTTP libraries
            message = f"data source '{self._name}': {self._source.dataset} cannot be {what} ({error})"
            raise DataError(message) from error

    def chunks(self, position: Position) -> Iterator[Chunk]:
        # A stream applies a loaded state in every later epoch too, so each pass opens its own.
        stream = self._open(position.get("revision"))
        if "stream" in position:
            stream.load_state_dict(position["stream"])
        anchor = {key: value for key, value in position.items() if key != "skip"}
        skip = position.get("skip", 0)
        rows = iter(stream)
        while True:
            with self._named_errors("read"):
                chunk = list(islice(rows, CHUNK_ROWS))
            if not chunk:
                return
            yield Chunk(chunk[skip:], {**anchor, "skip": skip}, "skip", self._source.dataset)
            row = anchor.get("row", 0) + len(chunk)
            anchor, skip = {**anchor, "row": row, "stream": stream.state_dict()}, 0


def _unset(pattern: str) -> str:
    """A hint that names an environment variable that was not expanded."""
    found = re.search(r"\$\{?(\w+)", pattern)
    return f" (${found[1]} is not set)" if found else ""
