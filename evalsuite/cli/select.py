"""`evalsuite select`: which layers of a teacher stay softmax."""

import argparse
from pathlib import Path
from typing import Any

from evalsuite.cli.options import add_quiet
from evalsuite.cli.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the verb."""
    parser = command(
        commands,
        "select",
        help="choose the layers that stay softmax, and say why in a file and a figure",
        example=(
            "  evalsuite select pocket --mixer gated_deltanet --selector ga_s2 --budget 2 --out layers.json\n"
            "  evalsuite distill pocket --mixer gla --layers layers.json --out students"
        ),
    )
    parser.add_argument("recipe", help="a name from `evalsuite show recipes`, or a YAML file")
    parser.add_argument(
        "--selector", required=True, metavar="NAME", help="a name from `evalsuite show selectors`"
    )
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--budget", type=int, metavar="K", help="layers that stay softmax")
    size.add_argument("--ratio", metavar="SHARE", help="their share, 0.25, or softmax to linear, 1:3")
    parser.add_argument(
        "--mixer", metavar="M", help="what the other layers become while choosing, instead of the recipe's"
    )
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override recipe fields, as for distill",
    )
    parser.add_argument(
        "--option",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        dest="options",
        help="settings of the selector, such as tokens=300k every=10 held_out=64 beam=4",
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file; the same command resumes")
    parser.add_argument(
        "--work",
        type=Path,
        help="folder for the all-linear trunk and for histories, shared by all selectors of a teacher "
        "(default: `work` beside --out)",
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:1 (default: cuda if there is one)")
    add_quiet(parser)
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Select, draw, and print what was chosen."""
    from evalsuite.cli.selection_figure import draw
    from evalsuite.distill import load_recipe
    from evalsuite.distill.selection import load_options, select
    from evalsuite.foundation import write_text
    from evalsuite.reports.extras import read_selection

    value = select(
        load_recipe(arguments.recipe, arguments.overrides),
        arguments.selector,
        arguments.out,
        budget=arguments.budget,
        ratio=arguments.ratio,
        options=load_options(arguments.options),
        mixer=arguments.mixer,
        work=arguments.work,
        device=arguments.device,
        quiet=arguments.quiet,
    )
    figure = arguments.out.with_suffix(".svg")
    write_text(figure, draw(read_selection(arguments.out)))
    print(f"layers {', '.join(map(str, value['layers']))} stay softmax, chosen by {value['selector']}")
    for line in (*value["details"]["notes"], *_said(value)):
        print(line)
    print(f"{arguments.out}\n{figure}")
    return 0


def _said(value: dict[str, Any]) -> list[str]:
    """What a pass cost, where there was one."""
    stop = value.get("stop")
    if stop is None:
        return []
    cost = value["details"]["cost"]
    how = "its choice had settled" if stop["why"] == "stable" else "its budget was spent"
    spent, alone = cost["student_tokens"], cost["separate_student_tokens"]
    left = stop["planned"] - stop["tokens"]
    return [
        f"stopped at step {stop['step']:,} of {value['details'].get('steps', stop['step']):,} as {how}: "
        f"{spent:,} student tokens, {left:,} saved by the stop; "
        f"one whole run per layer would take {alone:,} ({1 - spent / alone:.0%} saved)"
    ]
