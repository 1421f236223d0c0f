"""Parquet files of a run folder with typed columns, checked whenever they are written or read."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from evalsuite.foundation import DataError, write_bytes

METADATA = b"evalsuite"


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """A kind of file."""

    name: str
    """Its name in a run folder."""
    what: str
    """What its rows are, in errors."""
    command: str
    """What writes it."""
    schema: int
    columns: Mapping[str, pa.DataType]
    optional: Sequence[str]
    """Columns that may be null, or absent from new rows."""
    key: Sequence[str]
    """Columns that identify a row."""
    part: Sequence[str]
    """Columns whose values new rows replace all rows of."""
    sort: Callable[[pd.DataFrame], pd.DataFrame]
    check: Callable[[pa.Table, Path], None]
    """Raises DataError for rows that cannot be; see `refuse`."""

    def add(self, run: Path, frame: pd.DataFrame) -> Path:
        """Write rows to a run folder, atomically; those of the same `part` that are there are replaced.

        Raises:
            DataError: invalid rows, here or in the file that is there.
            RunFolderError: the folder cannot be written.
        """
        path = Path(run) / self.name
        if path.is_file():
            known, part = self.read(path), list(self.part)
            new, old = (
                pd.MultiIndex.from_frame(each[part].astype(object).fillna(-1)) for each in (frame, known)
            )
            frame = pd.concat([known[~old.isin(new)], frame], ignore_index=True)
        write_bytes(path, self.pack(self.sort(frame.reindex(columns=list(self.columns))), path))
        return path

    def pack(self, frame: pd.DataFrame, path: Path, compression_level: int | None = None) -> bytes:
        """Return the content of a file with these rows; `path` names it in errors.

        Raises:
            DataError: invalid rows.
        """
        columns = [pa.array(frame[name], kind, from_pandas=True) for name, kind in self.columns.items()]
        table = pa.table(dict(zip(self.columns, columns, strict=True)))
        self._check(table, path)
        buffer = io.BytesIO()
        metadata = {METADATA: json.dumps({"schema": self.schema})}
        table = table.replace_schema_metadata(metadata)
        pq.write_table(table, buffer, compression="zstd", compression_level=compression_level)
        return buffer.getvalue()

    def read(self, path: Path) -> pd.DataFrame:
        """Read one file.

        Raises:
            DataError: a damaged file, another schema, a missing or extra column, or invalid rows.
        """
        again = f"repeat `{self.command}`"
        try:
            table = pq.read_table(pa.BufferReader(Path(path).read_bytes()))
            schema = json.loads((table.schema.metadata or {})[METADATA])["schema"]
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{path}: not a file of {self.what} ({error!r}); {again}") from error
        if schema != self.schema:
            raise DataError(
                f"{path}: {self.what} of schema {schema!r}, this evalsuite reads {self.schema}; {again}"
            )
        for name, kind in self.columns.items():
            if name not in table.column_names or table.schema.field(name).type != kind:
                raise DataError(f"{path}: column '{name}' is missing or not of type {kind}")
        if extra := sorted(set(table.column_names) - set(self.columns)):
            raise DataError(f"{path}: column '{extra[0]}' is unknown")
        self._check(table, path)
        return table.to_pandas()

    def _check(self, table: pa.Table, path: Path) -> None:
        for name in self.columns:
            if name not in self.optional:
                refuse(path, table[name].is_null().to_numpy(), f"'{name}' is missing")
        self.check(table, path)

    def read_all(self, runs: Sequence[Path]) -> pd.DataFrame | None:
        """Read the files of all runs; a row in several of them counts once. None without any file.

        Raises:
            DataError: as `read`.
        """
        paths = [path for run in runs if (path := Path(run) / self.name).is_file()]
        if not paths:
            return None
        frame = pd.concat([self.read(path) for path in paths], ignore_index=True)
        return frame.drop_duplicates(self.key, ignore_index=True)


def refuse(path: Path, wrong: Any, reason: str) -> None:
    """Raise DataError, naming the row, if any is wrong.

    Args:
        path: the file.
        wrong: bool per row.
        reason: why.
    """
    numbers = np.flatnonzero(wrong)
    if len(numbers):
        raise DataError(f"{path}, row {numbers[0] + 1}: {reason}")
