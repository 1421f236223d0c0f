"""`evalsuite admit`: which benchmarks a teacher can do under both protocols."""

import argparse
from pathlib import Path

from evalsuite.foundation.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "admit",
        help="list the benchmarks that a teacher can do under both protocols",
        example=(
            "  evalsuite admit runs/teacher --out admission\n"
            "  evalsuite admit runs/teacher --teacher generator --rule rule.yaml --out admission"
        ),
    )
    parser.add_argument("run", type=Path, help="finished run folder")
    parser.add_argument(
        "--teacher",
        metavar="NAME",
        help="label, weights_id or path of a checkpoint (default: the run's teacher)",
    )
    parser.add_argument(
        "--rule",
        type=Path,
        metavar="FILE",
        help="YAML with min_documents, min_points and min_named (default: 500, 10 and 0.9)",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for admission.csv and admission.md")
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Apply the rule, write the tables and print the decisions."""
    from evalsuite.reports.admission import admit, load_rule, write_admission

    rule = load_rule(arguments.rule)
    decisions = admit(arguments.run, arguments.teacher, rule)
    for each in decisions:
        print(f"{each.benchmark}: {'admitted' if each.is_admitted else each.why}")
    for path in write_admission(decisions, rule, arguments.out):
        print(path)
    return 0
