"""Score files: `scores/<benchmark>.<protocol>.<fingerprint>.parquet`, one per checkpoint and cell.

A file of published samples holds all checkpoints that one version of a scorer scored (`merged`).

Scores are derived from documents, responses and scorers. The metadata of a file holds the hash of everything
that it was derived from, so that the score phase knows whether it is up to date. Files are written atomically
and never appended to.
"""

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from evalsuite.foundation import DataError, content_hash, parse_json, write_bytes
from evalsuite.reports.records.schema import SCHEMA, ScoreRow

METADATA = b"evalsuite"
SCALARS = {
    "weights_id": pa.string(),
    "fingerprint": pa.string(),
    "benchmark": pa.string(),
    "protocol": pa.string(),
    "seed": pa.int64(),
    "context": pa.int64(),
    "doc_id": pa.string(),
    "prompt_hash": pa.string(),
    "sampling": pa.string(),
    "checkpoint": pa.string(),
    "chance": pa.float64(),
    "outcome": pa.string(),
    "error": pa.string(),
    "cluster": pa.string(),
}
"""Columns of one value a row; `value.<metric>`, `choice.<metric>` and `detail` (JSON) follow."""
FLAGS = ("out_of_distribution", "closed_by_force")
"""Columns of a file in which they are true for some row; others do not have them."""
NESTED = {"values": ("value.", pa.float64()), "choices": ("choice.", pa.int32())}
REPAIR = "repeat `evalsuite run … --score-only`"


@dataclass(frozen=True, kw_only=True, slots=True)
class ScorerVersion:
    """What turned responses into scores."""

    scorer: str
    """The task file of lm-eval, the data set of EvalScope, or the name of a scorer of ours."""
    version: str
    """Hash of the scorer's code and configuration."""
    harness: str
    harness_version: str

    def __str__(self) -> str:
        return f"{self.harness} {self.harness_version}, {self.scorer} {self.version}"


UNKNOWN_SCORER = ScorerVersion(scorer="unknown", version="", harness="unknown", harness_version="")
"""Of scores that were imported without their versions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreFileInfo:
    """Metadata of a score file."""

    scorer: ScorerVersion
    inputs: str
    """Hash over everything that the scores are derived from; "" for imported scores."""
    rows: int
    undecided: int = 0
    """Rows that the scorer could not decide; the next score phase tries again."""
    merged: bool = False
    """Whether the file holds several checkpoints; its name has the hash of the scorer then."""

    def file_name(self, benchmark: str, protocol: str, fingerprint: str) -> str:
        """Return the name that a file of these rows must have; `fingerprint` is that of its first row."""
        which = content_hash(asdict(self.scorer)) if self.merged else fingerprint
        return f"{benchmark}.{protocol}.{which}.parquet"


def score_paths(run: Path, benchmark: str, protocol: str) -> list[Path]:
    """Return the score files of one benchmark and protocol, sorted."""
    pattern = re.compile(rf"{re.escape(benchmark)}\.{re.escape(protocol)}\.[A-Za-z0-9_-]+\.parquet")
    folder = Path(run) / "scores"
    return sorted(path for path in folder.glob(f"{benchmark}.*") if pattern.fullmatch(path.name))


def scored_checkpoints(paths: Iterable[Path]) -> set[tuple[str, str]]:
    """Return (weights_id, fingerprint) of whatever has rows in score files of one run.

    Raises:
        DataError: as `open_score_file`.
    """
    found: set[tuple[str, str]] = set()
    known: set[str] = set()
    for path in paths:
        fingerprint = path.name.split(".")[-2]
        if fingerprint in known:
            continue
        file, info = open_score_file(path)
        columns = read_columns(file, path, ["weights_id", "fingerprint"])
        found |= set(zip(*(columns[name].to_pylist() for name in columns.column_names), strict=True))
        if not info.merged:
            known.add(fingerprint)
    return found


def score_path(run: Path, benchmark: str, protocol: str, fingerprint: str) -> Path:
    """Return the path of the scores of one checkpoint on one benchmark under one protocol."""
    return Path(run) / "scores" / f"{benchmark}.{protocol}.{fingerprint}.parquet"


def write_score_file(run: Path, rows: Sequence[ScoreRow], info: ScoreFileInfo) -> Path:
    """Write the score rows of one checkpoint, benchmark and protocol, atomically; equal rows, equal bytes.

    Raises:
        DataError: no rows, or rows of several files.
        RunFolderError: the folder cannot be written or the disk is full; the old file stays.
    """
    places = {(row.benchmark, row.protocol, row.fingerprint, row.weights_id) for row in rows}
    if len(places) != 1:
        raise DataError(f"{run}: {len(places)} checkpoints, benchmarks or protocols in one score file")
    ((benchmark, protocol, fingerprint, _),) = places
    path = score_path(run, benchmark, protocol, fingerprint)
    write_bytes(path, pack_rows([row.row() for row in rows], info))
    return path


def pack_rows(rows: Sequence[Mapping[str, Any]], info: ScoreFileInfo) -> bytes:
    """Return the content of a score file; the rows are not validated."""
    columns: dict[str, pa.Array] = {
        name: pa.array([row[name] for row in rows], kind) for name, kind in SCALARS.items()
    }
    for field, (prefix, kind) in NESTED.items():
        for name in dict.fromkeys(name for row in rows for name in row[field]):
            numbers = (row[field].get(name) for row in rows)
            # NaN stays a number, which the reader refuses; only a metric that is absent is null.
            columns[prefix + name] = pa.array(numbers, kind, from_pandas=False)
    for flag in FLAGS:
        if any(row.get(flag) for row in rows):
            columns[flag] = pa.array([bool(row.get(flag)) for row in rows], pa.bool_())
    details = (json.dumps(row["detail"], ensure_ascii=False, allow_nan=False) for row in rows)
    columns["detail"] = pa.array(details, pa.string())
    return pack_table(pa.table(columns), info, compression_level=9)


def pack_table(table: pa.Table, info: ScoreFileInfo, **options: Any) -> bytes:
    """Return the content of a score file with these columns; `options` are those of `pq.write_table`."""
    metadata = {"schema": SCHEMA, **asdict(info)}
    if not info.merged:
        del metadata["merged"]
    table = table.replace_schema_metadata({METADATA: json.dumps(metadata, sort_keys=True)})
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", **options)
    return buffer.getvalue()


def open_score_file(path: Path) -> tuple[pq.ParquetFile, ScoreFileInfo]:
    """Open a score file.

    Raises:
        DataError: the file is missing or damaged, has another schema, lacks rows or a column, or a column has
            another type.
    """
    try:
        # Read at once: another process may replace the file.
        file = pq.ParquetFile(pa.BufferReader(Path(path).read_bytes()))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a parquet file ({error}); {REPAIR}") from error
    columns = file.schema_arrow
    names = columns.names
    try:
        value = parse_json((columns.metadata or {})[METADATA])
        schema = value.pop("schema")
        if schema != SCHEMA:
            raise DataError(f"{path}: scores of schema {schema!r}, this evalsuite reads {SCHEMA}; {REPAIR}")
        info = ScoreFileInfo(scorer=ScorerVersion(**value.pop("scorer")), **value)
        texts = (info.inputs, *asdict(info.scorer).values())
        numbers = (info.rows, info.undecided)
        if {*map(type, texts)} != {str} or {*map(type, numbers)} != {int} or type(info.merged) is not bool:
            raise TypeError("a value has another type")
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not a score file (no evalsuite metadata: {error!r}); {REPAIR}") from error
    for name, kind in _column_types(names).items():
        if names.count(name) != 1 or columns.field(name).type != kind:
            raise DataError(f"{path}: column '{name}' is missing, repeated or not of type {kind}; {REPAIR}")
    if info.rows != file.metadata.num_rows:
        raise DataError(f"{path}: {file.metadata.num_rows} rows, its metadata says {info.rows!r}; {REPAIR}")
    return file, info


def _column_types(names: Sequence[str]) -> dict[str, pa.DataType]:
    """Return the type of every column that a file with these columns must have."""
    nested = {name: kind for prefix, kind in NESTED.values() for name in names if name.startswith(prefix)}
    flags = {flag: pa.bool_() for flag in FLAGS if flag in names}
    return {**SCALARS, **nested, **flags, "detail": pa.string()}


def read_columns(file: pq.ParquetFile, path: Path, names: Sequence[str] | None = None) -> pa.Table:
    """Read columns of an open score file; None reads all. Raises DataError for damaged pages."""
    try:
        return file.read(names, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: damaged ({error}); {REPAIR}") from error


def read_info(path: Path) -> ScoreFileInfo | None:
    """Return the metadata of a score file; None if it is missing, damaged or of another schema."""
    try:
        return open_score_file(path)[1]
    except DataError:
        return None


def read_rows(path: Path, numbers: Iterable[int] | None = None) -> dict[int, dict[str, Any]]:
    """Read complete score rows, with `values`, `choices` and `detail`.

    Args:
        path: of a score file.
        numbers: 1-based numbers of rows; None reads all.

    Returns:
        The fields of `ScoreRow` by row number.

    Raises:
        DataError: not a score file.
    """
    table = read_columns(open_score_file(path)[0], path)
    wanted = list(range(1, table.num_rows + 1) if numbers is None else sorted(set(numbers)))
    rows = table.take(pa.array([number - 1 for number in wanted], pa.int64())).to_pylist()
    return {number: _nested(row, f"{path}, row {number}") for number, row in zip(wanted, rows, strict=True)}


def _nested(row: Mapping[str, Any], place: str) -> dict[str, Any]:
    found: dict[str, Any] = {name: row[name] for name in SCALARS}
    for field, (prefix, _) in NESTED.items():
        found[field] = {
            name.removeprefix(prefix): value
            for name, value in row.items()
            if name.startswith(prefix) and value is not None
        }
    flags = {flag: bool(row.get(flag)) for flag in FLAGS}
    return found | flags | {"detail": parse_detail(row["detail"], place)}


def parse_detail(text: str | None, place: str) -> dict[str, Any]:
    """Parse the detail of a row. Raises DataError, which names its place, if it is no JSON object."""
    try:
        detail = parse_json(text or "", allow_nan=True)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: 'detail' is no JSON ({error}); {REPAIR}") from error
    if not isinstance(detail, dict):
        raise DataError(f"{place}: 'detail' is no JSON object; {REPAIR}")
    return detail
