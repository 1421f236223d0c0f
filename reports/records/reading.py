"""Read score rows into data frames: a million rows in seconds, only the columns needed, validated."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from evalsuite.foundation import DataError, nearest
from evalsuite.foundation.taxonomy import OUTCOMES, PROTOCOLS
from evalsuite.reports.records.schema import KEY
from evalsuite.reports.records.score_files import (
    SCALARS,
    ScoreFileInfo,
    ScorerVersion,
    open_score_file,
    score_paths,
)

_CONSTANT = ("weights_id", "fingerprint", "benchmark", "protocol")
_OPTIONAL = ("context", "chance", "error", "cluster")
_REPETITIVE = (*_CONSTANT, "sampling", "checkpoint", "outcome")
_READ = tuple(name for name in SCALARS if name != "error")

NO_CHOICE = -1
"""Value of the integer columns `choice.<metric>` where no choice is known."""
NO_CONTEXT = -1
"""Value of the integer column `context` for a benchmark without contexts."""


def read_score_rows(
    path: Path, metrics: Sequence[str] = (), choices: Sequence[str] = (), *, extracted: bool = False
) -> tuple[pd.DataFrame, ScorerVersion]:
    """Read one score file without its details.

    Args:
        path: of one checkpoint, benchmark and protocol.
        metrics: metrics that every row without an error must have.
        choices: metrics whose choices are read.
        extracted: whether the extracted answers are read, which parses the details.

    Returns:
        A frame in file order: the columns of `KEY` (`context` is -1 for None), `checkpoint`, `chance`
        (NaN for None), `cluster` (missing for None), `outcome`, `row` (1-based), and one column
        `value.<metric>` per metric (NaN if a row of outcome `error` has none). Repetitive strings are
        categorical. With `choices`, one column `choice.<metric>` each: the index of the choice that it picks,
        −1 if none is known. With `extracted`, a column of that name: the extracted answer, stripped and in
        lower case, None without one. And the version of the scorer.

    Raises:
        DataError: a missing, damaged or empty file, another schema, a missing column or metric, a repeated
            key, a NaN, or rows of another checkpoint, benchmark or protocol; the message names file and row.
    """
    path = Path(path)
    file, info = open_score_file(path)
    known = file.schema_arrow.names
    for name, kind in SCALARS.items():
        if name not in known or file.schema_arrow.field(name).type != kind:
            raise DataError(f"{path}: column '{name}' is missing or not of type {kind}")
    values = [name for name in known if name.startswith("value.")]
    for name in values:
        if file.schema_arrow.field(name).type != pa.float64():
            raise DataError(f"{path}: column '{name}' is not of type double")
    if not file.metadata.num_rows:
        raise DataError(f"{path}: no score rows")
    picks = {name: f"choice.{name}" for name in choices if f"choice.{name}" in known}
    detail = ["detail"] if extracted else []
    if extracted and "detail" not in known:
        raise DataError(f"{path}: column 'detail' is missing; repeat `evalsuite run … --score-only`")
    table = file.read([*_READ, *values, *picks.values(), *detail], use_threads=False)
    for name in _READ:
        if name not in _OPTIONAL and table[name].null_count:
            _refuse(path, table[name].is_null(), f"'{name}' is missing")
    frame = _to_frame(table, values)
    _check_names(path, frame)
    _check_numbers(path, frame, values, [f"value.{name}" for name in metrics])
    frame.insert(0, "row", np.arange(1, len(frame) + 1))
    for name in choices:
        frame[f"choice.{name}"] = _choices(table[picks[name]]) if name in picks else np.int32(NO_CHOICE)
    if extracted:
        frame["extracted"] = _extracted(table["detail"], path)
    return frame, info.scorer


def sound_info(path: Path, *, clustered: bool) -> ScoreFileInfo | None:
    """Return the metadata of a score file; None if it is missing or damaged, or a row lacks its cluster.

    Args:
        path: of a score file.
        clustered: whether every row must name a cluster.
    """
    try:
        frame, _ = read_score_rows(path)
        file, info = open_score_file(path)
        file.read(["detail"], use_threads=False)
    except (DataError, pa.ArrowException, OSError):
        return None
    return None if clustered and frame["cluster"].isna().any() else info


def read_run_scores(run: Path, benchmark: str, protocol: str, metrics: Sequence[str] = ()) -> pd.DataFrame:
    """Read the score files of one benchmark and protocol of a run folder; see `read_score_rows`.

    Raises:
        DataError: an invalid score file, or none.
    """
    frames = [read_score_rows(path, metrics)[0] for path in score_paths(run, benchmark, protocol)]
    if not frames:
        raise DataError(f"{run}: no {protocol} scores of {benchmark}")
    for name in _REPETITIVE:
        kinds = pd.api.types.union_categoricals([frame[name] for frame in frames])
        for frame in frames:
            frame[name] = frame[name].cat.set_categories(kinds.categories)
    return pd.concat(frames, ignore_index=True)


def _to_frame(table: pa.Table, values: Sequence[str]) -> pd.DataFrame:
    columns: dict[str, Any] = {}
    for name in _READ:
        column = table[name]
        if name in _REPETITIVE:
            columns[name] = column.dictionary_encode().combine_chunks().to_pandas()
        elif name == "context":
            columns[name] = column.fill_null(NO_CONTEXT).to_numpy()
        else:
            columns[name] = column.to_pandas()
    # A null is a number that was not computed; NaN and infinity are values, and refused.
    for name in (*values, "chance"):
        finite = np.isfinite(table[name].fill_null(0.0).to_numpy())
        columns[name] = np.where(finite, table[name].to_numpy(), np.inf)
    return pd.DataFrame(columns)


def _choices(column: pa.ChunkedArray) -> np.ndarray:
    """Indices of choices, −1 for none. [rows]"""
    return np.asarray(column.cast(pa.int32()).fill_null(NO_CHOICE).to_numpy())


def _extracted(details: pa.ChunkedArray, path: Path) -> np.ndarray:
    """Extracted answers, None for none. [rows]

    Raises:
        DataError: a detail that is no JSON object.
    """
    answers = np.full(len(details), None, dtype=object)
    for number, text in enumerate(details.to_pylist()):
        try:
            answer = json.loads(text).get("extracted")
        except (AttributeError, TypeError, ValueError) as error:
            raise DataError(f"{path}, row {number + 1}: 'detail' is no JSON object ({error})") from error
        if answer is not None and (found := str(answer).strip().lower()):
            answers[number] = found
    return answers


def _refuse(path: Path, wrong: Any, reason: str) -> None:
    """Raise DataError at the first row where `wrong` is true."""
    numbers = np.flatnonzero(np.asarray(wrong, dtype=bool))
    if len(numbers):
        raise DataError(f"{path}, row {numbers[0] + 1}: {reason}")


def _check_names(path: Path, frame: pd.DataFrame) -> None:
    """Raises DataError for empty or unknown names, and for rows that belong to another file."""
    for name in (*(key for key in KEY if key not in ("seed", "context", "sampling")), "checkpoint"):
        _refuse(path, frame[name] == "", f"'{name}' is empty")
    for name in _CONSTANT:
        first = str(frame[name].iloc[0])
        _refuse(path, frame[name] != first, f"another {name} than row 1 ('{first}')")
    for name, allowed in (("protocol", PROTOCOLS), ("outcome", OUTCOMES)):
        for found in frame[name].cat.categories.difference(list(allowed)):
            _refuse(path, frame[name] == found, f"'{name}' = {found!r}; expected one of {', '.join(allowed)}")
    benchmark, protocol, fingerprint = (str(frame[name].iloc[0]) for name in (*_CONSTANT[2:], "fingerprint"))
    if path.name != f"{benchmark}.{protocol}.{fingerprint}.parquet":
        raise DataError(f"{path}: has score rows of {benchmark}, {protocol}, fingerprint {fingerprint}")
    keys = ["seed", "context", "doc_id", "prompt_hash", "sampling"]
    repeated = frame.duplicated(keys)
    if repeated.any():
        at = int(np.flatnonzero(repeated)[0])
        same = (frame[keys].astype(str) == frame[keys].iloc[at].astype(str)).all(axis=1)
        raise DataError(
            f"{path}, row {at + 1}: repeats the key of row {int(np.flatnonzero(same)[0]) + 1} "
            f"({frame['checkpoint'].iloc[at]}, document {frame['doc_id'].iloc[at]}, "
            f"seed {frame['seed'].iloc[at]})"
        )


def _check_numbers(path: Path, frame: pd.DataFrame, values: Sequence[str], required: Sequence[str]) -> None:
    """Raises DataError for numbers that are not finite, and for metrics that are missing."""
    for name in values:
        _refuse(path, np.isinf(frame[name]), f"'{name.removeprefix('value.')}' is not a finite number")
    _refuse(path, np.isinf(frame["chance"]), "'chance' is not a finite number")
    scored = frame["outcome"] != "error"
    for name in required:
        metric = name.removeprefix("value.")
        if name not in frame:
            known = [value.removeprefix("value.") for value in values]
            _refuse(path, scored, f"'values' lacks {metric}{nearest(metric, known)}")
            frame[name] = np.nan
        _refuse(path, scored & frame[name].isna(), f"'values' lacks {metric}")
