"""`evalsuite compare`: the leaderboards of runs, or of checkpoints that are evaluated first."""

import argparse
import sys
from pathlib import Path
from typing import Any

from evalsuite.cli.imports import add_import_options, read_inputs
from evalsuite.cli.options import add_model_options, add_quiet, add_selection_options, given_options
from evalsuite.foundation.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "compare",
        help="write the leaderboards (HTML, CSV, Markdown, JSON) of runs or checkpoints",
        example=(
            "  evalsuite compare runs/first runs/second --out report\n"
            "  evalsuite compare runs/first --policy gate.yaml --data data --out report\n"
            "  evalsuite compare runs/first --redact --export-samples --out page\n"
            "  evalsuite compare page/samples runs/mine --out merged\n"
            "  evalsuite compare ./student-a ./student-b --suite quick --teacher ./teacher --out report\n"
            "  evalsuite compare lm-eval-logs --teacher big-model --out report"
        ),
    )
    parser.add_argument("inputs", nargs="*", metavar="RUN-or-CHECKPOINT-or-LOG")
    parser.add_argument("--suite", help="suite to run on checkpoints (only with checkpoints)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the report")
    parser.add_argument("--policy", type=Path, help="gate policy; the report shows its verdict")
    parser.add_argument(
        "--printed",
        type=Path,
        metavar="CSV",
        help="scores from elsewhere (columns model, role, protocol, benchmark, value) for a table with ours, "
        "marked as printed",
    )
    parser.add_argument(
        "--questions",
        action="store_true",
        help="show document texts in the sample browser, from the documents in the run folders",
    )
    parser.add_argument(
        "--redact",
        action="store_true",
        help="omit question texts and absolute paths, for a page that is published",
    )
    parser.add_argument(
        "--no-samples",
        dest="samples",
        action="store_false",
        help="do not write the samples that the page loads on demand (OUT/samples/*.js)",
    )
    parser.add_argument(
        "--export-samples",
        action="store_true",
        help="also write the run folder OUT/samples: the scores and responses that are compared, by document "
        "id and without questions; `compare OUT/samples RUN` compares a later run with them",
    )
    add_import_options(
        parser,
        data_for="; also the source of question texts, and of documents for checkpoints (default for "
        "checkpoints: EVALSUITE_DATA, else the hub)",
    )
    add_selection_options(parser)
    parser.add_argument("--limit", type=int, metavar="N", help="a seeded sample of N documents per benchmark")
    add_model_options(parser)
    add_quiet(parser)
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate checkpoints, if any are given, and write the report."""
    from evalsuite.api import compare_with_texts
    from evalsuite.config import CompareConfig

    inputs = read_inputs(arguments.inputs, arguments, arguments.out, suite=arguments.suite, reads_data=True)
    # The documents of logs are no question texts, which --redact omits.
    used = ("data",) if inputs.imported and arguments.redact else ()
    options = given_options(arguments, "inputs", "imports", "benchmarks", *used)
    config = CompareConfig(inputs=[*inputs.runs, *inputs.checkpoints], **options)
    comparison, missing = compare_with_texts(config)
    print_leaderboard(comparison)
    for benchmark, why in missing.items():
        print(f"{benchmark}: {why}", file=sys.stderr)
    return 0


def print_leaderboard(comparison: Any) -> None:
    """Print the leaderboard of an `evalsuite.reports.comparison.Comparison` and the path of its page."""
    print(comparison.text.rstrip())
    print(f"\npage: {comparison.page}")
