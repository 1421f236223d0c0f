"""`evalsuite export`: results in the formats that others read."""

import argparse
import sys
from pathlib import Path

from evalsuite.cli.imports import add_import_options, read_inputs
from evalsuite.cli.options import add_selection_options
from evalsuite.foundation.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "export",
        help="write results as model cards, hub metadata or Every Eval Ever",
        example=(
            "  evalsuite export runs/first --format model-card --out students\n"
            "  evalsuite export runs/first --format every-eval-ever --out eee"
        ),
    )
    parser.add_argument(
        "runs", nargs="*", metavar="RUN-or-LOG", help="run folders, or logs of another harness"
    )
    parser.add_argument(
        "--format",
        required=True,
        metavar="NAME",
        help="model-card (one README.md a student, with its Distillation Loss Statement), model-index or "
        "eval-results (metadata of the Hugging Face Hub), or every-eval-ever (schema 0.3)",
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the files, in one folder per checkpoint"
    )
    add_import_options(parser)
    add_selection_options(parser)
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the files, print their paths, and on standard error what the format cannot hold."""
    from evalsuite.reports import RunSelection
    from evalsuite.reports.exports.formats import EXPORTERS, export

    EXPORTERS.get_or_raise(arguments.format, "--format")
    inputs = read_inputs(arguments.runs, arguments, arguments.out)
    selection = RunSelection(
        arguments.teacher,
        tuple(arguments.checkpoints),
        arguments.min_coverage,
        arguments.errors,
        same=tuple(arguments.same),
    )
    found = export(inputs.runs, arguments.format, arguments.out, selection=selection)
    for path in found.files:
        print(path)
    for sentence in found.left_out:
        print(f"left out: {sentence}", file=sys.stderr)
    return 0
