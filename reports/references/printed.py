"""Scores that a user has from elsewhere, such as another paper's: they stand next to ours, never paired."""

import csv
from collections.abc import Collection
from pathlib import Path
from typing import Literal

from pydantic import Field

from evalsuite.foundation import ConfigError, DataError, nearest
from evalsuite.foundation.strict import Strict, parse
from evalsuite.foundation.taxonomy import Protocol
from evalsuite.reports.references.papers import BENCHMARKS, MEANS, PaperScore


class PrintedRow(Strict):
    """One row of the file: columns as in the CSV files of `evalsuite.reports.references`."""

    model: str = Field(min_length=1)
    role: Literal["teacher", "student"]
    protocol: Protocol
    benchmark: str
    """evalsuite's name, or that of the papers' tables."""
    value: float = Field(allow_inf_nan=False)
    """As printed: a percentage, or what `metric` says."""
    metric: str = "score"
    """`score (0-1)` for a fraction, `perplexity`; anything else is a percentage."""
    context: int | None = Field(default=None, ge=1)
    scale: str = ""
    teacher: str = ""
    """Model of a student's teacher, where the table has several."""
    table: str = ""
    note: str = ""


def read_printed(path: Path, benchmarks: Collection[str]) -> tuple[PaperScore, ...]:
    """Read printed scores.

    Args:
        path: a CSV file with a header.
        benchmarks: names of the report's benchmarks.

    Raises:
        DataError: the file cannot be read or has no rows, a row is invalid, its benchmark is unknown, or an
            earlier row has its cell.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            lines = [(reader.line_num, row) for reader in [csv.DictReader(file)] for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV ({error})") from None
    found: dict[tuple[object, ...], PaperScore] = {}
    for number, row in lines:
        place = f"{path}, line {number}"
        try:
            score = parse({str(key): value for key, value in row.items() if value}, PrintedRow, place)
        except ConfigError as error:
            raise DataError(str(error)) from None
        known = [*BENCHMARKS, *MEANS, *benchmarks]
        if score.benchmark not in known:
            raise DataError(
                f"{place}: 'benchmark' = {score.benchmark!r}: no benchmark of this report or of the papers' "
                f"tables{nearest(score.benchmark, known)}"
            )
        key = (score.table, score.model, score.scale, score.protocol, score.benchmark, score.context)
        if key in found:
            raise DataError(
                f"{place}: {score.model} has two printed scores of {score.benchmark} ({score.protocol}); "
                "keep one"
            )
        found[key] = PaperScore(source=path.name, **score.model_dump())
    if not found:
        raise DataError(f"{path}: no printed scores")
    return tuple(found.values())
