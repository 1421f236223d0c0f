"""`evalsuite distill`: a recipe becomes student checkpoints."""

import argparse
import json
from pathlib import Path

from evalsuite.cli.options import add_quiet
from evalsuite.cli.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the verb."""
    parser = command(
        commands,
        "distill",
        help="turn a teacher into student checkpoints, as a recipe says",
        example=(
            "  evalsuite distill default --mixer gated_deltanet kda --set teacher=./model --out students\n"
            "  evalsuite distill pocket --dry-run"
        ),
    )
    parser.add_argument("recipe", help="a name from `evalsuite show recipes`, or a YAML file")
    parser.add_argument("--mixer", nargs="+", metavar="M", help="students to make, instead of the recipe's")
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override recipe fields, e.g. stages.kd.lr=1e-3 seed=2",
    )
    parser.add_argument(
        "--layers", metavar="FILE", help="layers that stay softmax, as `evalsuite select` wrote them"
    )
    parser.add_argument("--out", type=Path, help="folder for the checkpoints; the same command resumes")
    parser.add_argument("--device", help="cpu, cuda or cuda:1 (default: cuda if there is one)")
    parser.add_argument(
        "--dry-run", action="store_true", help="print tokens, FLOPs, memory and time, and stop"
    )
    add_quiet(parser)
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Distil, or say what distilling would cost."""
    from evalsuite.distill import load_recipe
    from evalsuite.foundation import ConfigError

    chosen = [] if arguments.layers is None else [f"student.softmax_layers={json.dumps(arguments.layers)}"]
    recipe = load_recipe(arguments.recipe, [*arguments.overrides, *chosen])
    if arguments.dry_run:
        from evalsuite.distill import dry_run

        print(dry_run(recipe, mixers=arguments.mixer, device=arguments.device))
        return 0
    if arguments.out is None:
        raise ConfigError("--out DIR is required (or --dry-run)")
    from evalsuite.distill import distill

    folders = distill(
        recipe, arguments.out, mixers=arguments.mixer, device=arguments.device, quiet=arguments.quiet
    )
    for folder in folders:
        print(folder)
    return 0
