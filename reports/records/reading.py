"""Read score rows into data frames: a million rows in seconds, only the columns needed, validated."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from evalsuite.foundation import DataError, content_hash, nearest
from evalsuite.foundation.taxonomy import OUTCOMES, PROTOCOL_TITLES, PROTOCOLS
from evalsuite.reports.records.schema import KEY
from evalsuite.reports.records.score_files import (
    FLAGS,
    SCALARS,
    ScoreFileInfo,
    ScorerVersion,
    open_score_file,
    parse_detail,
    read_columns,
    score_paths,
)

_OF_CHECKPOINT = ("weights_id", "fingerprint")
_CONSTANT = (*_OF_CHECKPOINT, "benchmark", "protocol")
_OPTIONAL = ("context", "chance", "error", "cluster")
_REPETITIVE = (*_CONSTANT, "sampling", "checkpoint", "outcome")
_READ = tuple(name for name in SCALARS if name != "error")

NO_CHOICE = -1
"""Value of the integer columns `choice.<metric>` where no choice is known."""
NO_CONTEXT = -1
"""Value of the integer column `context` for a benchmark without contexts."""
MAX_ANSWER = 240
"""Characters of an extracted answer that are compared as such; the rest of a longer one is hashed."""


def read_score_rows(
    path: Path, metrics: Sequence[str] = (), choices: Sequence[str] = (), *, extracted: bool = False
) -> tuple[pd.DataFrame, ScorerVersion]:
    """Read one score file; see `read_score_files`."""
    frame, (scorer,) = read_score_files([path], metrics, choices, extracted=extracted)
    return frame, scorer


def read_score_files(
    paths: Sequence[Path],
    metrics: Sequence[str] = (),
    choices: Sequence[str] = (),
    *,
    extracted: bool = False,
) -> tuple[pd.DataFrame, list[ScorerVersion]]:
    """Read the score files of checkpoints without their details, as one frame: pandas is slow on small ones.

    Args:
        paths: at least one, each of one benchmark and protocol, and of one checkpoint if it is not merged.
        metrics: metrics that every row without an error must have.
        choices: metrics whose choices are read.
        extracted: whether the extracted answers are read, which parses the details.

    Returns:
        A frame, file after file: the columns of `KEY` (`context` is -1 for None), `checkpoint`, `chance`
        (NaN for None), `cluster` (missing for None), `outcome`, those of `FLAGS`, `file` (index into
        `paths`), `row` (1-based), and one column `value.<metric>` per metric (NaN if a row of outcome `error`
        has none). Repetitive strings are categorical. With `choices`, one column `choice.<metric>` each: the
        index of the choice that it picks, −1 if none is known. With `extracted`, a column of that name, see
        `comparable_answer`. And the version of each file's scorer.

    Raises:
        DataError: a missing, damaged or empty file, another schema, a missing column or metric, a repeated
            key, a NaN, or rows of another checkpoint, benchmark or protocol; the message names file and row.
    """
    paths = list(map(Path, paths))
    tables, infos = [], []
    for path in paths:
        file, info = open_score_file(path)
        if not file.metadata.num_rows:
            raise DataError(f"{path}: no score rows")
        picks = [*FLAGS, *(f"choice.{name}" for name in choices)]
        wanted = [name for name in file.schema_arrow.names if name.startswith("value.") or name in picks]
        tables.append(read_columns(file, path, [*_READ, *wanted, *(["detail"] if extracted else [])]))
        infos.append(info)
    # Columns that only some files have are null in the others.
    table = pa.concat_tables(tables, promote_options="default")
    values = [name for name in table.column_names if name.startswith("value.")]
    sizes = [len(each) for each in tables]
    number = np.concatenate(list(map(np.arange, sizes)))
    rows = _Rows(paths, infos, np.repeat(np.arange(len(paths)), sizes), number)
    for name in _READ:
        if name not in _OPTIONAL and table[name].null_count:
            rows.refuse(table[name].is_null(), f"'{name}' is missing")
    frame = _to_frame(table, values)
    _check_names(rows, frame)
    _check_numbers(rows, frame, values, [f"value.{name}" for name in metrics])
    for flag in FLAGS:
        known = flag in table.column_names
        frame[flag] = table[flag].fill_null(False).to_numpy() if known else False
    frame.insert(0, "row", rows.number + 1)
    frame.insert(0, "file", rows.file)
    for name in choices:
        known = f"choice.{name}" in table.column_names
        frame[f"choice.{name}"] = _choices(table[f"choice.{name}"]) if known else np.int32(NO_CHOICE)
    if extracted:
        frame["extracted"] = _extracted(table["detail"], rows)
    return frame, [info.scorer for info in infos]


def comparable_answer(extracted: object) -> str | None:
    """The form in which extracted answers are compared: stripped, in lower case, None for none.

    One of more than `MAX_ANSWER` characters ends with a hash of the whole. Its form is its own form, so that
    samples that were published with it are compared like the run that they are of.
    """
    answer = "" if extracted is None else str(extracted).strip().lower()
    if len(answer) <= MAX_ANSWER:
        return answer or None
    end = f"… {content_hash(answer)}"
    return answer[: MAX_ANSWER - len(end)] + end


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where each row of a table comes from."""

    paths: Sequence[Path]
    infos: Sequence[ScoreFileInfo]
    file: np.ndarray
    """Index into `paths`. [rows]"""
    number: np.ndarray
    """0-based, within the file. [rows]"""

    def place(self, at: int) -> str:
        """Name the file and the row."""
        return f"{self.paths[self.file[at]]}, row {self.number[at] + 1}"

    def refuse(self, wrong: Any, reason: str) -> None:
        """Raise DataError at the first row where `wrong` is true."""
        found = np.flatnonzero(np.asarray(wrong, dtype=bool))
        if len(found):
            raise DataError(f"{self.place(found[0])}: {reason}")

    @property
    def first(self) -> np.ndarray:
        """Index of the first row of each row's file. [rows]"""
        return np.arange(len(self.file)) - self.number


def sound_info(path: Path, *, clustered: bool) -> ScoreFileInfo | None:
    """Return the metadata of a score file; None if it is missing or damaged, or a row lacks its cluster.

    Args:
        path: of a score file.
        clustered: whether every row must name a cluster.
    """
    try:
        frame, _ = read_score_rows(path, extracted=True)
        info = open_score_file(path)[1]
    except DataError:
        return None
    return None if clustered and frame["cluster"].isna().any() else info


def read_run_scores(run: Path, benchmark: str, protocol: str, metrics: Sequence[str] = ()) -> pd.DataFrame:
    """Read the score files of one benchmark and protocol of a run folder; see `read_score_rows`.

    Raises:
        DataError: an invalid score file, or none.
    """
    paths = score_paths(run, benchmark, protocol)
    if not paths:
        raise DataError(f"{run}: no {PROTOCOL_TITLES[protocol]} scores of {benchmark}")
    return read_score_files(paths, metrics)[0]


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
    return np.asarray(column.fill_null(NO_CHOICE).to_numpy())


def _extracted(details: pa.ChunkedArray, rows: _Rows) -> np.ndarray:
    """Extracted answers, None for none. [rows]

    Raises:
        DataError: a detail that is no JSON object.
    """
    answers = np.full(len(details), None, dtype=object)
    for at, text in enumerate(details.to_pylist()):
        answers[at] = comparable_answer(parse_detail(text, rows.place(at)).get("extracted"))
    return answers


def _check_names(rows: _Rows, frame: pd.DataFrame) -> None:
    """Raises DataError for empty or unknown names, and for rows that belong to another file."""
    for name in (*(key for key in KEY if key not in ("seed", "context", "sampling")), "checkpoint"):
        rows.refuse(frame[name] == "", f"'{name}' is empty")
    several = np.array([info.merged for info in rows.infos])[rows.file]
    for name in _CONSTANT:
        codes = frame[name].cat.codes.to_numpy()
        differs = codes != codes[rows.first]
        for at in np.flatnonzero(differs & ~several if name in _OF_CHECKPOINT else differs)[:1]:
            first = frame[name].iloc[rows.first[at]]
            raise DataError(f"{rows.place(at)}: another {name} than row 1 ('{first}')")
    for name, allowed in (("protocol", PROTOCOLS), ("outcome", OUTCOMES)):
        for found in frame[name].cat.categories.difference(list(allowed)):
            rows.refuse(frame[name] == found, f"'{name}' = {found!r}; expected one of {', '.join(allowed)}")
    starts = np.flatnonzero(rows.number == 0)
    named = zip(*(frame[name].iloc[starts] for name in _CONSTANT[1:]), strict=True)
    for path, info, (fingerprint, benchmark, protocol) in zip(rows.paths, rows.infos, named, strict=True):
        if path.name != info.file_name(benchmark, protocol, fingerprint):
            who = f"scorer {info.scorer}" if info.merged else f"fingerprint {fingerprint}"
            raise DataError(f"{path}: has score rows of {benchmark}, {protocol}, {who}")
    keys = frame[[name for name in KEY if name not in ("benchmark", "protocol")]].assign(file=rows.file)
    for at in np.flatnonzero(keys.duplicated())[:1]:
        same = np.flatnonzero((keys.astype(str) == keys.iloc[at].astype(str)).all(axis=1))
        raise DataError(
            f"{rows.place(at)}: repeats the key of row {rows.number[same[0]] + 1} "
            f"({frame['checkpoint'].iloc[at]}, document {frame['doc_id'].iloc[at]}, "
            f"seed {frame['seed'].iloc[at]})"
        )


def _check_numbers(rows: _Rows, frame: pd.DataFrame, values: Sequence[str], required: Sequence[str]) -> None:
    """Raises DataError for numbers that are not finite, and for metrics that are missing."""
    for name in values:
        rows.refuse(np.isinf(frame[name]), f"'{name.removeprefix('value.')}' is not a finite number")
    rows.refuse(np.isinf(frame["chance"]), "'chance' is not a finite number")
    outside = frame["chance"].notna() & ~frame["chance"].between(0, 1)
    rows.refuse(outside, "'chance' is a fraction between 0 and 1")
    scored = frame["outcome"] != "error"
    for name in required:
        metric = name.removeprefix("value.")
        if name not in frame:
            known = [value.removeprefix("value.") for value in values]
            rows.refuse(scored, f"'values' lacks {metric}{nearest(metric, known)}")
            frame[name] = np.nan
        rows.refuse(scored & frame[name].isna(), f"'values' lacks {metric}")
