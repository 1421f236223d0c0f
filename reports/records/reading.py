"""Read score rows into data frames: a million rows in seconds, strictly validated.

The fast path (pyarrow, only the columns needed) detects that a file is invalid; the slow path (line by line)
then reports the mistake with file and line.
"""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from evalsuite.foundation import DataError, nearest
from evalsuite.foundation.taxonomy import OUTCOMES, PROTOCOLS
from evalsuite.reports.records.schema import KEY, SCHEMA, ScoreRow, scores_path

_INTEGERS = ("seed", "context", "schema")
_OPTIONAL = ("context", "chance", "cluster")
_REPETITIVE = ("weights_id", "fingerprint", "benchmark", "protocol", "sampling", "checkpoint", "outcome")
_SCALARS = (*KEY, "checkpoint", "chance", "cluster", "outcome", "schema")
_BLOCK = 16 << 20

NO_CONTEXT = -1
"""Value of the integer column `context` for a benchmark without contexts."""


def read_score_rows(path: Path, metrics: Sequence[str] = ()) -> pd.DataFrame:
    """Read one journal without its details.

    A last line without newline comes from an interrupted write and is ignored.

    Args:
        path: a journal of one benchmark and protocol.
        metrics: metrics that every row without an error must have, in addition to those of the first rows.

    Returns:
        A frame in file order: the columns of `KEY` (`context` is -1 for None), `checkpoint`, `chance`
        (NaN for None), `cluster` (missing for None), `outcome`, `line` (1-based), and one column
        `value.<metric>` per metric (NaN if a row of outcome `error` has none). Repetitive strings are categorical.

    Raises:
        DataError: another schema, a missing key or metric, a repeated key, a NaN, or a line that is not a
            score row; the message names file and line. Also if the file is missing or has no rows.
    """
    path = Path(path)
    data = _complete_lines(path)
    if not data:
        raise DataError(f"{path}: no score rows")
    names = list(dict.fromkeys((*metrics, *_metrics_of_first_rows(path))))
    try:
        table = _parse(data, names)
    except pa.ArrowInvalid as error:
        _explain(path, metrics)
        raise DataError(f"{path}: cannot be read ({error})") from None
    frame = _to_frame(table, names)
    if table.num_rows != _count_lines(data) or not _is_sound(table, frame, names, metrics):
        _explain(path, metrics)
        raise DataError(f"{path}: blank lines, or two score rows on one line")
    frame.insert(0, "line", range(1, len(frame) + 1))
    return frame.drop(columns="schema")


def read_run_scores(run: Path, benchmark: str, protocol: str, metrics: Sequence[str] = ()) -> pd.DataFrame:
    """Read the journal of one benchmark and protocol of a run folder; see `read_records`."""
    return read_score_rows(scores_path(run, benchmark, protocol), metrics)


def scored_keys(run: Path, benchmark: str, protocol: str) -> set[tuple[str | int | None, ...]]:
    """Return the keys (see `ScoreRow.key`) that a run folder already has for a benchmark and protocol."""
    path = scores_path(run, benchmark, protocol)
    if not path.exists() or not _complete_lines(path):
        return set()
    frame = read_score_rows(path)
    frame["context"] = frame["context"].astype(object).where(frame["context"] != NO_CONTEXT, None)
    return set(zip(*(frame[name].astype(object) for name in KEY), strict=True))


def read_lines(path: Path, lines: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Read complete score rows (with `detail`) at the given 1-based lines of a journal."""
    wanted = set(lines)
    found: dict[int, dict[str, Any]] = {}
    if not wanted:
        return found
    with open(path, "rb") as file:
        for number, line in enumerate(itertools.islice(file, max(wanted)), 1):
            if number in wanted:
                found[number] = json.loads(line)
    return found


def _complete_lines(path: Path) -> pa.Buffer:
    """Return the bytes of a journal up to its last newline, memory-mapped."""
    try:
        if path.stat().st_size == 0:
            return pa.py_buffer(b"")
        with pa.memory_map(str(path), "r") as file:
            data = file.read_buffer()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error})") from error
    end = data.size
    while end > 0:
        start = max(0, end - 65536)
        cut = data[start:end].to_pybytes().rfind(b"\n")
        if cut >= 0:
            return data[: start + cut + 1]
        end = start
    return pa.py_buffer(b"")


def _count_lines(data: pa.Buffer) -> int:
    return sum(data[at : at + _BLOCK].to_pybytes().count(b"\n") for at in range(0, data.size, _BLOCK))


def _metrics_of_first_rows(path: Path, enough: int = 100) -> list[str]:
    """Return the metric names of the first rows that have values."""
    names: dict[str, None] = {}
    seen = 0
    with open(path, "rb") as file:
        for line in file:
            try:
                values = json.loads(line)["values"]
                names.update(dict.fromkeys(values))
            except (ValueError, TypeError, KeyError):
                break  # the parser or the validation reports what is wrong here
            seen += bool(values)
            if seen >= enough:
                break
    return list(names)


def _parse(data: pa.Buffer, metrics: Sequence[str]) -> pa.Table:
    fields = [pa.field(name, pa.int64() if name in _INTEGERS else pa.string()) for name in _SCALARS]
    fields[_SCALARS.index("chance")] = pa.field("chance", pa.float64())
    fields.append(pa.field("values", pa.struct([pa.field(name, pa.float64()) for name in metrics])))
    return pj.read_json(
        pa.BufferReader(data),
        read_options=pj.ReadOptions(block_size=_BLOCK),
        parse_options=pj.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"),
    )


def _to_frame(table: pa.Table, metrics: Sequence[str]) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    for name in _SCALARS:
        column = table[name]
        if name in _REPETITIVE:
            columns[name] = column.dictionary_encode().combine_chunks().to_pandas()
        elif name == "context":
            columns[name] = column.fill_null(NO_CONTEXT).to_numpy()
        else:
            columns[name] = column.to_pandas()
    # A struct without fields cannot be accessed; only a file of errors has one.
    for name in metrics:
        columns[f"value.{name}"] = pc.struct_field(table["values"], name).to_numpy()
    return pd.DataFrame(columns)


def _is_sound(table: pa.Table, frame: pd.DataFrame, names: Sequence[str], required: Sequence[str]) -> bool:
    """Whether all rows have this schema, every key, known constants, finite numbers and unique keys."""
    if any(table[name].null_count for name in _SCALARS if name not in _OPTIONAL):
        return False
    if not (frame["schema"] == SCHEMA).all():
        return False
    if frame["benchmark"].nunique() != 1 or frame["protocol"].nunique() != 1:
        return False
    if not set(frame["outcome"].cat.categories) <= set(OUTCOMES):
        return False
    if not set(frame["protocol"].cat.categories) <= set(PROTOCOLS):
        return False
    # A JSON null is an Arrow null, a metric that was not computed; NaN and infinity are values and refused.
    values = [pc.struct_field(table["values"], name) for name in names]
    if not all(pc.all(pc.is_finite(column), min_count=0).as_py() for column in (*values, table["chance"])):
        return False
    answered = frame["outcome"] != "error"
    if frame.loc[answered, [f"value.{name}" for name in required]].isna().any(axis=None):
        return False
    return not frame.duplicated(list(KEY)).any()


def _explain(path: Path, required: Sequence[str]) -> None:
    """Read line by line and raise DataError at the first invalid line."""
    first_line: dict[tuple[Any, ...], int] = {}
    benchmark = protocol = None
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            where = f"{path}, line {number}"
            try:
                record = _score_row(line, required)
            except (ValueError, TypeError, DataError) as error:
                raise DataError(f"{where}: {error}") from None
            benchmark = benchmark or record.benchmark
            if record.benchmark != benchmark:
                raise DataError(f"{where}: benchmark '{record.benchmark}' in a journal of '{benchmark}'")
            protocol = protocol or record.protocol
            if record.protocol != protocol:
                raise DataError(f"{where}: protocol '{record.protocol}' in a journal of '{protocol}'")
            if record.key in first_line:
                raise DataError(
                    f"{where}: repeats the key of line {first_line[record.key]} "
                    f"({record.checkpoint}, document {record.doc_id}, seed {record.seed})"
                )
            first_line[record.key] = number


def _score_row(line: bytes, required: Sequence[str]) -> ScoreRow:
    row = json.loads(line, parse_constant=_refuse_constant)
    if not isinstance(row, Mapping):
        raise DataError("not a JSON object")
    record = ScoreRow.from_row(row)
    missing = [name for name in required if name not in record.values]
    if missing and record.outcome != "error":
        raise DataError(f"'values' lacks {', '.join(missing)}{nearest(missing[0], record.values)}")
    return record


def _refuse_constant(name: str) -> float:
    raise DataError(f"'{name}' is not a number")
