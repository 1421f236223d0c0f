"""Writes the ledger of linearized models from the figures that their authors print.

python -m evalsuite.reports.studies.ledger --out reports/results/ledger
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from evalsuite.cli.parser import Parser
from evalsuite.foundation.module_entry import run_module
from evalsuite.reports.studies.ledger.figures import read_figures
from evalsuite.reports.studies.ledger.page import write_page
from evalsuite.reports.studies.ledger.recoveries import ledger_rows

NAME = "evalsuite.reports.studies.ledger"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page. Raises DataError for figures that cannot be read."""
    parser = Parser(
        prog=f"python -m {NAME}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the page")
    given = parser.parse_args(arguments)
    print(write_page(ledger_rows(read_figures()), given.out))


if __name__ == "__main__":
    run_module(NAME, main)
