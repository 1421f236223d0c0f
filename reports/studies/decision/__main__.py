"""Writes the page of the study from scored run folders.

    python -m evalsuite.reports.studies.decision --run smollm2=RUN --run gemma=RUN --out OUT

`--half heldout` reads the needles that are opened once, after the last run of both teachers, compares them
with the exploratory ones, and adds what a choice by each measure would have cost.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from evalsuite.foundation import ConfigError
from evalsuite.foundation.module_entry import run_module
from evalsuite.foundation.parser import Parser
from evalsuite.reports.studies.decision.analysis import OPEN, analyse
from evalsuite.reports.studies.decision.page import write_page
from evalsuite.reports.studies.decision.piece import teacher_of
from evalsuite.reports.studies.decision.protocol import load_protocol

NAME = "evalsuite.reports.studies.decision"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page. Raises EvalsuiteError for input that cannot be read."""
    protocol = load_protocol()
    parser = Parser(
        prog=f"python -m {NAME}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run",
        action="append",
        required=True,
        metavar="TEACHER=RUN",
        help="teacher of the protocol, and the run folder with its scores; once per teacher",
    )
    parser.add_argument(
        "--half", choices=sorted(protocol.needles.halves), default=OPEN, help="of the needles"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the page")
    given = parser.parse_args(arguments)
    runs: dict[str, Path] = {}
    for text in given.run:
        name, equals, path = text.partition("=")
        if not equals or name in runs:
            raise ConfigError(f"--run {text}: expected TEACHER=RUN, once per teacher")
        teacher_of(protocol, name)
        runs[name] = Path(path)
    halves = dict.fromkeys((given.half, OPEN))
    findings = [[analyse(path, protocol, name, half) for name, path in runs.items()] for half in halves]
    print(write_page(protocol, findings[0], given.out, *findings[1:]))


if __name__ == "__main__":
    run_module(NAME, main)
