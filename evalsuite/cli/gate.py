"""`evalsuite gate`: a pass/fail verdict for CI."""

import argparse
from pathlib import Path

from evalsuite.cli.options import add_selection_options, selection_of
from evalsuite.cli.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "gate",
        help="pass (0), proven regression (1), inconclusive (2) or not measured (3)",
        example=(
            "  evalsuite gate runs/first --min-recovery 0.9 --max-gap 5\n"
            "  evalsuite gate runs/first --policy gate.yaml"
        ),
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="finished run folders")
    parser.add_argument("--policy", type=Path, help="a YAML policy")
    parser.add_argument(
        "--min-recovery",
        type=float,
        metavar="X",
        help="minimum recovery, as a fraction of the teacher, e.g. 0.9",
    )
    parser.add_argument(
        "--max-gap", type=float, metavar="Y", help="maximum gap between the protocols, in points, e.g. 5"
    )
    add_selection_options(parser)
    parser.add_argument(
        "--out", type=Path, help="folder for junit.xml, gate.md and gate.json (default: RUN/gate)"
    )
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Evaluate the policy, print every rule's outcome, and return the verdict as exit code."""
    from evalsuite.foundation import ConfigError
    from evalsuite.reports import load_policy, policy_from_options, run_gate

    given = arguments.min_recovery is not None or arguments.max_gap is not None
    if (arguments.policy is not None) == given:
        raise ConfigError("pass either --policy FILE, or --min-recovery and/or --max-gap")
    if arguments.policy is not None:
        policy = load_policy(arguments.policy)
    else:
        policy = policy_from_options(min_recovery=arguments.min_recovery, max_gap=arguments.max_gap)
    verdict = run_gate(
        arguments.runs,
        policy,
        out=arguments.out or arguments.runs[0] / "gate",
        selection=selection_of(arguments, arguments.teacher),
    )
    print(verdict.text)
    return int(verdict.exit_code)
