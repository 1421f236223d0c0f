"""`evalsuite gate`: a pass/fail verdict for CI."""

import argparse
from dataclasses import fields, replace
from pathlib import Path

from evalsuite.cli.imports import add_import_options, read_inputs
from evalsuite.cli.options import add_selection_options, given_options
from evalsuite.cli.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "gate",
        help="pass (0), proven regression (1), inconclusive (2) or not measured (3)",
        example=(
            "  evalsuite gate runs/first --min-recovery 0.9 --max-gap 5\n"
            "  evalsuite gate runs/first --policy gate.yaml\n"
            "  evalsuite gate lm-eval-logs --teacher big-model --min-recovery 0.95 --out verdict"
        ),
    )
    parser.add_argument(
        "runs", nargs="*", metavar="RUN-or-LOG", help="finished run folders, or logs of another harness"
    )
    parser.add_argument("--policy", type=Path, help="a YAML policy")
    parser.complete = lambda: _add_bounds(parser)
    parser.add_argument(
        "--over",
        choices=("documents", "runs"),
        help="decide on the checkpoint itself, or on its recipe over training runs (default: over runs where "
        "the spread between them is known, else over the documents of one run)",
    )
    parser.add_argument(
        "--run-spread",
        type=float,
        metavar="X",
        help="standard deviation of the score between training runs of a recipe, in points, e.g. 1.2 "
        "(default: that between the seeds in the runs)",
    )
    add_import_options(parser, "the runs and logs; the verdict names the others")
    add_selection_options(parser)
    parser.add_argument(
        "--out",
        type=Path,
        help="folder for junit.xml, gate.md and gate.json (default: none is written; required for logs)",
    )
    parser.set_defaults(call=run)


def _add_bounds(parser: argparse.ArgumentParser) -> None:
    """Add an option for every measure that has one; what registers them imports pandas."""
    from evalsuite.reports.gate.policy import options

    group = parser.add_argument_group("rules without a policy")
    for option, (_, metric) in options().items():
        group.add_argument(
            f"--{option.replace('_', '-')}",
            type=float,
            metavar="X",
            help=f"{'minimum' if metric.bound == 'min' else 'maximum'} {metric.hint}",
        )


def run(arguments: argparse.Namespace) -> int:
    """Evaluate the policy, print every rule's outcome, and return the verdict as exit code."""
    from evalsuite.api import gate
    from evalsuite.config import GateConfig

    options = given_options(arguments, "runs", "imports")
    settings = {each.name for each in fields(GateConfig)}
    bounds = {name: options.pop(name) for name in list(options) if name not in settings}
    # Wrong options are named before logs are imported.
    config = GateConfig(runs=[*arguments.runs, *arguments.imports], bounds=bounds, **options)
    inputs = read_inputs(arguments.runs, arguments, arguments.out, of_runs=True)
    verdict = gate(replace(config, runs=inputs.runs))
    print(verdict.text)
    return int(verdict.exit_code)
