"""Reads and edits score rows of synthetic runs as plain mappings, without validation."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from evalsuite.reports.records.schema import ScoreRow
from evalsuite.reports.records.score_files import (
    ScoreFileInfo,
    ScorerVersion,
    pack_rows,
    read_rows,
    score_path,
    score_paths,
    write_score_file,
)

Row = dict[str, Any]
SCORER = ScorerVersion(scorer="synthetic", version="1", harness="simulation", harness_version="1")


def info_of(rows: Sequence[object]) -> ScoreFileInfo:
    """The metadata of a synthetic score file."""
    return ScoreFileInfo(scorer=SCORER, inputs="synthetic", rows=len(rows))


def write_rows(run: Path, rows: Iterable[ScoreRow]) -> None:
    """Write score rows, one file per checkpoint, benchmark and protocol; replaces these files."""
    rows = sorted(rows, key=_file)
    for _, group in groupby(rows, key=_file):
        members = list(group)
        write_score_file(run, members, info_of(members))


def _file(row: ScoreRow) -> tuple[str, ...]:
    return row.benchmark, row.protocol, row.fingerprint


def all_rows(run: Path, benchmark: str, protocol: str) -> list[Row]:
    """The score rows of one benchmark and protocol, checkpoint by checkpoint."""
    return [row for path in score_paths(run, benchmark, protocol) for row in read_rows(path).values()]


def write_unchecked(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a score file of rows that `ScoreRow` might refuse."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pack_rows(rows, info_of(rows)))


def edit_rows(run: Path, benchmark: str, protocol: str, change: Callable[[int, Row], Row | None]) -> None:
    """Replace score rows; `change` gets each row with its 1-based number in its file; None removes it.

    A file whose rows all get another fingerprint moves to that name; a file without rows is removed.
    """
    for path in score_paths(run, benchmark, protocol):
        rows = [change(number, row) for number, row in read_rows(path).items()]
        left = [row for row in rows if row is not None]
        path.unlink()
        if left:
            (fingerprint, *others) = dict.fromkeys(row["fingerprint"] for row in left)
            to = path if others else score_path(run, benchmark, protocol, fingerprint)
            write_unchecked(to, left)


def rows_by_cell(run: Path) -> dict[str, list[Row]]:
    """Every score row of a run, by `<benchmark>.<protocol>`."""
    found: dict[str, list[Row]] = {}
    for path in sorted((run / "scores").glob("*.parquet")):
        name = path.name.removesuffix(".parquet").rpartition(".")[0]
        found.setdefault(name, []).extend(read_rows(path).values())
    return found
