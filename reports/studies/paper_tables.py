"""The papers' tables at pocket scale: runs the commands of every row of docs/how-to/reproduce-tables.md.

    python -m evalsuite.reports.studies.paper_tables --data data --out tables --table '2603.26556, *'

Each row has a folder below --out, in which its commands run as they stand on the page, with their output in
`log.txt` and their seconds in `seconds.json`. Commands that ended well are not repeated, and rows of the same
`distill` share its students. `tables/ROW/` has the papers' tables that a row names, `rows.csv` what was run.
A row that fails is named with the end of its output, the others go on, and the exit code is 70.
"""

import argparse
import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from evalsuite.foundation import ConfigError, EvalsuiteError, read_json, write_csv, write_json
from evalsuite.foundation.errors import nearest
from evalsuite.foundation.module_entry import run_module
from evalsuite.foundation.parser import Parser
from evalsuite.reports.measures.papers.tables import shipped_names, table_name
from evalsuite.reports.references.papers import TABLE_MEANS, paper_scores

NAME = "evalsuite.reports.studies.paper_tables"
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "reproduce-tables.md"
PAPERS = {
    "2504.14366": "linearizing_2025",
    "nine mixers": "kd_nine_2025",
    "2603.26556": "gendistill_2026",
    "2512.20569": "kl_guided_2026",
}
"""A paper's name on the page → in the names of its tables."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the page's table, its commands with all options."""

    name: str
    """The paper and its tables, as on the page."""
    before: tuple[str, ...]
    """Commands that write the files and students that `distill` reads."""
    distill: str
    run: str
    compare: str
    students: int

    @property
    def folder(self) -> str:
        """Name of the row's folder."""
        return re.sub(r"[^\w.]+", "-", self.name)

    @property
    def tables(self) -> list[str]:
        """Names of the paper's tables, as `compare` writes them; those that repeat others are not written."""
        paper, _, rest = self.name.partition(", ")
        found = re.findall(r"\d+|Appendix \w", rest)
        labels = [f"table_{each}" if each.isdigit() else each.lower().replace(" ", "_") for each in found]
        return [f"{PAPERS[paper]}_{label}" for label in labels]


def section() -> str:
    """The page's section with the rows."""
    return re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1]


def rows() -> list[Row]:
    """All rows of the page."""
    text = section()
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    added = re.search(r"Add `([^`]+)` to each `distill` of the table, and `([^`]+)` to each `run`", text)
    example, others = re.findall(r"^```\n(.+?)\n```$", text, re.MULTILINE | re.DOTALL)
    assert added, f"{PAGE}: no sentence on the options that are added"
    return [
        Row(
            name,
            tuple(command for command in others.splitlines() if _is_read(command, distill)),
            f"{distill.strip('`')} {added[1]}",
            f"{run.strip('`')} {added[2]}",
            example.splitlines()[-1],
            int(students),
        )
        for name, distill, run, students in lines
    ]


def _is_read(command: str, distill: str) -> bool:
    """Whether `distill` names the file or folder that a command writes; sweeps add a number to files."""
    stem = Path(command.rpartition("--out ")[2]).stem
    return re.search(rf"[ ]{re.escape(stem)}(-\d+)?(\.json|/)", distill) is not None


def distinct_layers(command: str, folder: Path) -> str:
    """Leave out files of layers that repeat an earlier one: students of both would have the same weights."""
    kept, seen = [], set()
    for word in shlex.split(command):
        if word.endswith(".json"):
            layers = tuple(read_json(folder / word)["layers"])
            if layers in seen:
                continue
            seen.add(layers)
        kept.append(word)
    return shlex.join(kept)


def coverage(path: Path) -> tuple[int, int, list[str]]:
    """Columns of a paper's table that have a score of ours, columns of the paper, and benchmarks without one.

    Args:
        path: of the table, which is not there if it shares no benchmark, or is not shipped.
    """
    lines = list(csv.DictReader(path.open(newline="", encoding="utf-8"))) if path.exists() else []
    here = {name for line in lines if line["origin"] == "ours" for name, text in line.items() if text}
    printed = dict.fromkeys(
        (each.benchmark, each.protocol, each.context)
        for each in paper_scores()
        if table_name(each) == path.stem and each.benchmark not in TABLE_MEANS
    )
    counts = {
        name: sum(re.match(rf"{re.escape(name)}(,| \d|$)", each) is not None for each in here)
        for name, _, _ in printed
    }
    return sum(counts.values()), len(printed), [name for name, count in counts.items() if not count]


class Runner:
    """Runs rows below `out`.

    Args:
        out: folder of all rows.
        data: frozen data, which the commands find as `data`.
    """

    def __init__(self, out: Path, data: Path) -> None:
        if not data.is_dir():
            raise ConfigError(f"--data {data}: no such folder")
        self._out, self._data = out, data.resolve()
        self._rows = rows()

    def run(self, row: Row) -> None:
        """Train, evaluate and compare the students of a row, and collect its tables.

        Raises:
            EvalsuiteError: a command failed, or none of the row's tables was written.
        """
        first = next(each for each in self._rows if each.distill == row.distill)
        for command in first.before:
            self._call(first, command)
        self._call(first, distinct_layers(first.distill, self._folder(first)))
        students = self._folder(row) / "students"
        if first != row and not students.is_symlink():
            students.symlink_to(Path("..", first.folder, "students"), target_is_directory=True)
        for command in (row.run, row.compare):
            self._call(row, command)
        page = self._folder(row) / "page"
        scored = [page / "papers" / f"{name}.csv" for name in row.tables if name in shipped_names()]
        # A table without scores has the perplexity of held-out text.
        found = [path for path in scored or [page / "training.csv"] if path.exists()]
        if not found:
            raise EvalsuiteError(f"none of {', '.join(row.tables)} was written")
        self._collected(row).mkdir(parents=True, exist_ok=True)
        for path in found:
            shutil.copy(path, self._collected(row))

    def summary(self) -> list[dict[str, Any]]:
        """Students, seconds and columns of all rows that ended, seconds of shared students once."""
        return [self._summary(row) for row in self._rows if self._collected(row).is_dir()]

    def _summary(self, row: Row) -> dict[str, Any]:
        steps = dict.fromkeys(("before", "distill", "run", "compare"), 0.0)
        names = dict.fromkeys(row.before, "before") | {row.run: "run", row.compare: "compare"}
        for command, seconds in read_json(self._folder(row) / "seconds.json").items():
            steps[names.get(command, "distill")] += seconds
        covered = [coverage(self._collected(row) / f"{name}.csv") for name in row.tables]
        return {
            "row": row.name,
            "students": len(list((self._folder(row) / "students").rglob("config.json"))),
            **{f"seconds_{name}": round(seconds) for name, seconds in steps.items()},
            "columns": sum(columns for columns, _, _ in covered),
            "columns_of_paper": sum(printed for _, printed, _ in covered),
            "missing": "; ".join(dict.fromkeys(name for _, _, missing in covered for name in missing)),
        }

    def _collected(self, row: Row) -> Path:
        return self._out / "tables" / row.folder

    def _folder(self, row: Row) -> Path:
        folder = self._out / row.folder
        folder.mkdir(parents=True, exist_ok=True)
        data = folder / "data"
        if not data.is_symlink():
            data.symlink_to(self._data, target_is_directory=True)
        return folder

    def _call(self, row: Row, command: str) -> None:
        """Run a command in the row's folder, unless it has ended well before."""
        folder = self._folder(row)
        path = folder / "seconds.json"
        seconds = read_json(path) if path.exists() else {}
        if command in seconds:
            return
        print(f"{row.name}: {command}", flush=True)
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", *shlex.split(command)],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with (folder / "log.txt").open("a", encoding="utf-8") as log:
            log.write(f"$ {command}\n{done.stdout}\n")
        if done.returncode:
            raise EvalsuiteError(f"{command}: exit code {done.returncode}\n{done.stdout[-2000:]}")
        write_json(path, seconds | {command: round(time.monotonic() - started, 1)})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run rows, and write what was run."""
    parser = Parser(
        prog=f"python -m {NAME}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of frozen data")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder of the rows; repeat the command to resume"
    )
    parser.add_argument(
        "--table", nargs="+", default=["*"], metavar="PATTERN", help="rows by name (default: all)"
    )
    given = parser.parse_args(arguments)
    known = rows()
    for pattern in given.table:
        if not any(fnmatch(row.name, pattern) for row in known):
            raise ConfigError(
                f"--table {pattern}: no such row{nearest(pattern, [row.name for row in known])}"
            )
    runner = Runner(given.out, given.data)
    failed = []
    for row in known:
        if any(fnmatch(row.name, pattern) for pattern in given.table):
            try:
                runner.run(row)
            except EvalsuiteError as error:
                print(f"{row.name}: {error}", file=sys.stderr, flush=True)
                failed.append(row.name)
    finished = runner.summary()
    if finished:
        write_csv(given.out / "rows.csv", finished[0], (row.values() for row in finished))
    if failed:
        raise EvalsuiteError(f"{len(failed)} rows failed: {'; '.join(failed)}")


if __name__ == "__main__":
    run_module(NAME, main)
