"""`evalsuite convert`: run folders of an earlier version."""

import argparse
from pathlib import Path

from evalsuite.foundation.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "convert",
        help="convert run folders of an earlier version (plan.yaml) to one manifest (run.json)",
        example="  evalsuite convert runs/first runs/second/samples",
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folder")
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Convert the folders, and print which were."""
    from evalsuite.evaluation.convert import convert

    for each in arguments.runs:
        print(f"{each}: {'converted' if convert(each) else 'has a run.json already'}")
    return 0
