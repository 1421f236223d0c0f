"""Writes the ledger of linearized models from the figures that their authors print.

    python -m evalsuite.reports.studies.ledger --out reports/results/ledger

`--averages TEACHER STUDENT …` adds students from results_*.json of lm-eval without samples, or from
folders of them; NAME=PATH names a model. Their rows have bounds over documents: nothing is paired or tested.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from evalsuite.foundation import ConfigError
from evalsuite.foundation.module_entry import run_module
from evalsuite.foundation.parser import Parser
from evalsuite.reports.studies.ledger.averages import read_averages
from evalsuite.reports.studies.ledger.figures import read_figures
from evalsuite.reports.studies.ledger.page import write_page
from evalsuite.reports.studies.ledger.recoveries import ledger_rows

NAME = "evalsuite.reports.studies.ledger"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page. Raises EvalsuiteError for figures or logs that cannot be read."""
    parser = Parser(
        prog=f"python -m {NAME}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the page")
    parser.add_argument(
        "--averages",
        action="append",
        nargs="+",
        default=[],
        metavar="[NAME=]PATH",
        help="a teacher's log and those of its students; once per teacher",
    )
    given = parser.parse_args(arguments)
    figures = read_figures()
    for teacher, *students in given.averages:
        if not students:
            raise ConfigError(f"--averages {teacher}: expected a teacher and at least one student")
        figures += read_averages(teacher, students)
    print(write_page(ledger_rows(figures), given.out))


if __name__ == "__main__":
    run_module(NAME, main)
