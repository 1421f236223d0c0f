"""`evalsuite gate`: a pass/fail verdict for CI."""

import argparse
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from evalsuite.cli.imports import add_import_options, read_inputs
from evalsuite.cli.options import add_selection_options, given_options
from evalsuite.foundation.parser import command

PLAN = ("plan", "documents", "loss", "churn", "score", "power")
"""Options of a plan."""


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "gate",
        help="pass (0), proven regression (1), inconclusive (2) or not measured (3)",
        example=(
            "  evalsuite gate runs/first --min-recovery 0.9 --max-gap 5\n"
            "  evalsuite gate runs/first --policy gate.yaml\n"
            "  evalsuite gate lm-eval-logs --teacher big-model --min-recovery 0.95 --out verdict\n"
            "  evalsuite gate --plan gate.yaml --documents 1319"
        ),
    )
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN-or-LOG",
        help="finished run folders, logs of another harness, or a folder of `evalsuite compare`, on whose "
        "intervals alone rules are decided",
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
    parser.add_argument("--json", action="store_true", help="print the verdict, or the plan, as JSON")
    _add_plan(parser)
    parser.set_defaults(call=run)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    """Add what plans a policy before a run."""
    group = parser.add_argument_group("power of a policy, before a run")
    group.add_argument(
        "--plan",
        type=Path,
        metavar="POLICY",
        help="print how often each rule of POLICY fails and passes with a loss and without, and how many "
        "documents give the power; the numbers of documents are those of --documents or of run folders "
        "(after --build-only), whose scores are not read",
    )
    group.add_argument(
        "--documents",
        type=int,
        nargs="+",
        metavar="N",
        help="documents of each benchmark that a rule averages; a rule on one benchmark counts the least",
    )
    for option, help in (
        ("--loss", "true loss in points of the score (default: 5)"),
        ("--churn", "share of documents that exactly one of the two checkpoints has right (default: 0.15)"),
        ("--score", "score of the teacher or the baseline, for recoveries, for example (default: 0.7)"),
        ("--power", "probability to notice the loss that the number of documents is for (default: 0.8)"),
    ):
        group.add_argument(option, type=float, metavar="X", help=help)


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
    from evalsuite.foundation import ConfigError

    options = given_options(arguments, "runs", "imports", "data", "json", *PLAN)
    settings = {each.name for each in fields(GateConfig)}
    bounds = {name: options.pop(name) for name in list(options) if name not in settings}
    if arguments.plan is not None:
        return _plan(arguments, {**options, **bounds, "import": arguments.imports, "data": arguments.data})
    if given := [name for name in PLAN if getattr(arguments, name) is not None]:
        raise ConfigError(f"--{given[0]} plans a policy: pass --plan POLICY, or leave it out")
    # Wrong options are named before logs are imported.
    config = GateConfig(runs=[*arguments.runs, *arguments.imports], bounds=bounds, **options)
    if config.report is None:
        runs = read_inputs(arguments.runs, arguments, arguments.out, of_runs=True).runs
        config = replace(config, runs=runs)
    verdict = gate(config)
    if arguments.json:
        from evalsuite.reports.gate.outputs import verdict_json

        print(json.dumps(verdict_json(verdict), indent=1))
    else:
        print(verdict.text)
    return int(verdict.exit_code)


def _plan(arguments: argparse.Namespace, options: dict[str, Any]) -> int:
    """Print the plan of a policy. Raises ConfigError for an option that a plan does not read."""
    from evalsuite.api import plan_gate
    from evalsuite.foundation import ConfigError

    read = {"checkpoints": options.pop("checkpoints"), "benchmarks": options.pop("benchmarks")}
    over = {name: options.pop(name) for name in ("over", "run_spread")}
    if unread := [name for name, value in options.items() if value not in (None, [], False)]:
        option = f"--{unread[0].replace('_', '-')}"
        raise ConfigError(f"{option} has no effect on --plan, which reads no scores and writes nothing")
    given = {
        name: value for name in PLAN if name != "plan" and (value := getattr(arguments, name)) is not None
    }
    plan = plan_gate(arguments.plan, runs=arguments.runs, **read, **over, **given)
    print(json.dumps(plan.to_json(), indent=1) if arguments.json else plan.text)
    return 0
