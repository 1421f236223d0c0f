"""The reader of local files."""

import glob
import hashlib
import io
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from evalsuite.distill.data.chunks import Chunk, Position, refuse_earlier_order
from evalsuite.distill.data.side_by_side import CHUNK_ROWS, OpenFile, groups, side_by_side
from evalsuite.distill.recipe.data_sources import LocalSourceConfig
from evalsuite.foundation import DataError

READ_BYTES = 1 << 18
"""Of a file of lines, at a time; more is slower to split, since it leaves the processor's cache."""
SAMPLE_BYTES = 1 << 24
"""Of a compressed file, from which its size is estimated."""


class LocalReader:
    """Local parquet and JSON-lines files, side by side. Every file is read once per pass."""

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
        group = groups(len(self.files), self._source.seed)[0]
        return {"file": group[0], "row": 0, "rows": [0] * len(group), "files": self._fingerprints}

    def chunks(self, position: Position) -> Iterator[Chunk]:
        self._check_unchanged(position["files"])
        if "rows" not in position:
            raise refuse_earlier_order(self._name)
        current, rows = position["file"], list(position["rows"])
        parts = groups(len(self.files), self._source.seed)
        first = next(number for number, group in enumerate(parts) if current in group)
        rows[parts[first].index(current)] = position["row"]
        for group in parts[first:]:
            opened = [
                open_file(self.files[number], row, self._source.columns, alone=len(group) == 1)
                for number, row in zip(group, rows or [0] * len(group), strict=True)
            ]
            at = group.index(current) if current in group else 0
            before = [each.row for each in opened]
            for place, chunk in side_by_side(opened, at):
                number = group[place]
                here = {**position, "file": number, "row": before[place], "rows": before}
                yield Chunk(chunk, here, "row", str(self.files[number]))
                before = [each.row for each in opened]
            rows = []

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


def file_chunks(path: Path) -> Iterator[Any]:
    """Rows of one file in chunks: lines, or Arrow record batches."""
    opened = open_file(path, 0, (), alone=True)
    while len(rows := opened.read(CHUNK_ROWS)):
        yield rows


def open_file(path: Path, start: int, columns: Collection[str], *, alone: bool) -> OpenFile:
    """Open a file at a row; columns of parquet files are read, all if one of them is missing.

    Args:
        alone: no other file is read with it, so that its progress needs no size.

    Raises:
        DataError: the file cannot be read.
    """
    with _named_file(path):
        return _ParquetFile(path, start, columns) if path.suffix == ".parquet" else _Lines(path, start, alone)


@contextmanager
def _named_file(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})") from error


class _ParquetFile:
    """Record batches; its progress is the part of the rows that are read."""

    def __init__(self, path: Path, start: int, columns: Collection[str]) -> None:
        import pyarrow.parquet as parquet

        self.row, self._path = start, path
        self._file = parquet.ParquetFile(path)
        existing = set(self._file.schema_arrow.names)
        # If one is missing, `parse_row` suggests the nearest of all columns.
        self._columns = sorted(columns) if columns and existing.issuperset(columns) else None
        self._batches = self._read_batches(start)
        self._rest: Any = ()

    @property
    def progress(self) -> float:
        return self.row / max(1, self._file.metadata.num_rows)

    def read(self, count: int) -> Any:
        with _named_file(self._path):
            while not len(self._rest):
                if (batch := next(self._batches, None)) is None:
                    return ()
                self._rest = batch
        rows, self._rest = self._rest.slice(0, count), self._rest.slice(count)
        self.row += len(rows)
        return rows

    def _read_batches(self, start: int) -> Iterator[Any]:
        metadata, group = self._file.metadata, 0
        while group < metadata.num_row_groups and start >= metadata.row_group(group).num_rows:
            start -= metadata.row_group(group).num_rows
            group += 1
        with self._file:
            row_groups = range(group, metadata.num_row_groups)
            for batch in self._file.iter_batches(CHUNK_ROWS, row_groups=row_groups, columns=self._columns):
                yield batch.slice(min(start, len(batch)))
                start = max(0, start - len(batch))


class _Lines:
    """Lines that are not blank; its progress is the part of the bytes that are read, before compression."""

    def __init__(self, path: Path, start: int, alone: bool) -> None:
        self.row, self._path, self._read_bytes = 0, path, 0
        self._size = 1.0 if alone else max(1.0, _text_bytes(path))
        self._lines = _lines(path)
        while self.row < start and self.read(min(CHUNK_ROWS, start - self.row)):
            pass

    @property
    def progress(self) -> float:
        return self._read_bytes / self._size

    def read(self, count: int) -> list[bytes]:
        with _named_file(self._path):
            lines = list(islice(self._lines, count))
        self.row += len(lines)
        self._read_bytes += sum(map(len, lines))
        return lines


def _lines(path: Path) -> Iterator[bytes]:
    import pyarrow

    compression = "zstd" if path.suffix == ".zst" else None
    with pyarrow.input_stream(str(path), compression=compression) as raw:
        yield from filter(bytes.strip, io.BufferedReader(raw, READ_BYTES))


def _text_bytes(path: Path) -> float:
    """Bytes of a file before compression, estimated from its beginning where it is compressed."""
    import pyarrow

    size = path.stat().st_size
    if path.suffix != ".zst":
        return size
    with path.open("rb") as file:
        stream = pyarrow.CompressedInputStream(pyarrow.PythonFile(file), "zstd")
        found = 0
        while found < SAMPLE_BYTES and (block := stream.read(READ_BYTES)):
            found += len(block)
        return found if found < SAMPLE_BYTES else found * size / file.tell()


def _unset(pattern: str) -> str:
    """A hint that names an environment variable that was not expanded."""
    found = re.search(r"\$\{?(\w+)", pattern)
    return f" (${found[1]} is not set)" if found else ""
