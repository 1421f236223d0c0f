"""Tables of tracked results: a page shows the CSV itself, so that no number is copied by hand."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from docs._generate.links import RESULTS

NUMBER = re.compile(r"[+−-]?\d")


def csv_table(names: Sequence[str]) -> str:
    """Return CSV files below reports/results as one Markdown table; the first column of several is the study.

    Raises:
        ValueError: a file that is missing or empty, or that has other columns than the first; MkDocs stops
            with it.
    """
    read = {name: _rows(RESULTS / name) for name in names}
    heads = {name: rows[0] for name, rows in read.items()}
    head = heads[names[0]]
    if wrong := next((name for name, other in heads.items() if other != head), None):
        raise ValueError(f"{wrong}: its columns are not those of {names[0]}")
    lines = [
        row if len(names) == 1 else [_study(name), *row] for name, rows in read.items() for row in rows[1:]
    ]
    titles = head if len(names) == 1 else ["study", *head]
    rule = ["---:" if any(map(NUMBER.match, cells)) else "---" for cells in zip(*lines, strict=True)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (titles, rule, *lines))


def _study(name: str) -> str:
    return Path(name).parent.as_posix()


def _cell(text: str) -> str:
    # An interval in parentheses stays on one line.
    return re.sub(r" to (?=[^()]*\))", "\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}", text).replace("|", "\\|")


def _rows(path: Path) -> list[list[str]]:
    if not path.is_file():
        raise ValueError(f"{path.relative_to(RESULTS)}: no such file below reports/results")
    with open(path, newline="") as file:
        rows = [[_cell(text) for text in row] for row in csv.reader(file)]
    if len(rows) < 2:
        raise ValueError(f"{path.relative_to(RESULTS)}: empty")
    return rows
