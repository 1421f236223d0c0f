"""Score files of several checkpoints: the rows that a report compares, without the dataset's texts.

All checkpoints of a benchmark and protocol that one version of a scorer scored are in one file, sorted by
document: what they have in common is stored once, and a page of a hundred thousand scores takes a megabyte.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from evalsuite.reports.records.merging import CheckpointEntry, MergedPlan
from evalsuite.reports.records.reading import MAX_ANSWER, comparable_answer
from evalsuite.reports.records.run_selection import RunSelection
from evalsuite.reports.records.score_files import (
    FLAGS,
    NESTED,
    SCALARS,
    ScoreFileInfo,
    ScorerVersion,
    open_score_file,
    pack_table,
    parse_detail,
    read_columns,
)
from evalsuite.reports.records.score_rows import BenchmarkProtocol, ReadLog, collect_score_rows

MAX_CHARACTERS = MAX_ANSWER
"""Length to which responses and reasons of errors are cut, as extracted answers are."""
_ORDER = ("context", "doc_id", "seed", "checkpoint")


def merged_score_files(
    merged: MergedPlan, selection: RunSelection, change_error: Callable[[str], str] = str
) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of every score file of the selected checkpoints; equal rows, equal bytes.

    Args:
        merged: the runs, and their checkpoints with the labels that the rows get.
        selection: as for `collect_score_rows`, which selects the rows.
        change_error: changes the reason of an error.

    Raises:
        DataError: as `collect_score_rows`, or a detail that is no JSON object.
    """
    owners = {member: each for each in merged.checkpoints for member in each.members}
    for benchmark in merged.benchmarks:
        for protocol, plan in benchmark.protocols.items():
            log = ReadLog()
            source = BenchmarkProtocol(benchmark, protocol, plan)
            frame = collect_score_rows(source, merged, selection, log)
            if frame is None:
                continue
            rows = dict(iter(frame.groupby("file")["row"]))
            tables: dict[ScorerVersion, list[pa.Table]] = {}
            for file, (path, scorer) in enumerate(zip(log.score_files, log.scorers, strict=True)):
                if file in rows:
                    tables.setdefault(scorer, []).append(_rows(path, rows[file], owners, change_error))
            for scorer, parts in tables.items():
                table = _arranged(parts)
                info = ScoreFileInfo(scorer=scorer, inputs="", rows=len(table), merged=True)
                name = info.file_name(benchmark.name, protocol, "")
                yield name, pack_table(table, info, **_layout(table))


def _rows(
    path: Path,
    numbers: "pd.Series[int]",
    owners: Mapping[tuple[str, str], CheckpointEntry],
    change_error: Callable[[str], str],
) -> pa.Table:
    """Rows of a score file by their numbers, as they are published."""
    table = read_columns(open_score_file(path)[0], path).take(pa.array(numbers - 1, pa.int64()))
    errors = [
        None if error is None else change_error(error)[:MAX_CHARACTERS]
        for error in table["error"].to_pylist()
    ]
    protocols, details = table["protocol"].to_pylist(), table["detail"].to_pylist()
    published = [
        json.dumps(
            _published(parse_detail(detail, f"{path}, row {number}"), protocol),
            ensure_ascii=False,
            separators=(",", ":"),
        )
        for detail, protocol, number in zip(details, protocols, numbers, strict=True)
    ]
    identity = zip(table["weights_id"].to_pylist(), table["fingerprint"].to_pylist(), strict=True)
    checkpoints = [owners[member] for member in identity]
    for name, values in (
        ("weights_id", [each.weights_id for each in checkpoints]),
        ("checkpoint", [each.label for each in checkpoints]),
        ("error", errors),
        ("detail", published),
    ):
        table = table.set_column(table.column_names.index(name), name, pa.array(values, pa.string()))
    return table


def _published(detail: Mapping[str, Any], protocol: str) -> dict[str, str]:
    """The part of a detail that the model wrote, cut."""
    if protocol != "generation":
        return {}
    found = {}
    for name in ("response", "extracted"):
        if detail.get(name) is not None:
            text = str(detail[name])
            found[name] = text[:MAX_CHARACTERS]
            if name == "extracted" and len(text) > MAX_ANSWER:
                found[name] = comparable_answer(text) or ""
    return found


def _arranged(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of several files as one table whose order does not depend on them."""
    table = pa.concat_tables(tables, promote_options="default")
    prefixes = tuple(prefix for prefix, _ in NESTED.values())
    nested = [name for name in table.column_names if name.startswith(prefixes)]
    columns = [*SCALARS, *sorted(name for name in nested if table[name].null_count < len(table))]
    for flag in FLAGS:
        if flag in table.column_names and any(table[flag].to_pylist()):
            at = table.column_names.index(flag)
            table = table.set_column(at, flag, table[flag].fill_null(False))
            columns.append(flag)
    table = table.select([*columns, "detail"])
    return table.sort_by([(name, "ascending") for name in _ORDER]).combine_chunks()


def _layout(table: pa.Table) -> dict[str, Any]:
    """How the columns are stored: doc_ids and the like once, by dictionary, but not what rarely repeats."""
    numbers = [name for name in table.column_names if name.startswith("value.")]
    various = [name for name in numbers if pc.count_distinct(table[name]).as_py() > len(table) // 4]
    return {
        "compression_level": 19,
        "write_statistics": False,
        "use_byte_stream_split": various,
        "use_dictionary": [name for name in table.column_names if name not in (*various, "detail")],
        # One group of rows, and one page and one dictionary a column.
        "row_group_size": 1 << 24,
        "data_page_size": 1 << 26,
        "dictionary_pagesize_limit": 1 << 26,
    }
