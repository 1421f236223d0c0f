"""`evalsuite select`: select the layers of a teacher that stay softmax."""

import argparse
from itertools import product
from pathlib import Path
from typing import Any

from evalsuite.cli.options import add_quiet, add_recipe_options, set_recipe_data
from evalsuite.foundation.parser import command


def add(commands: argparse._SubParsersAction) -> None:
    """Add the verb."""
    parser = command(
        commands,
        "select",
        help="select the layers that stay softmax",
        example=(
            "  evalsuite select pocket --mixer gated_deltanet --selector ga_s2 --budget 2 --out layers.json\n"
            "  evalsuite distill pocket --mixer gla --layers layers.json --out students"
        ),
    )
    add_recipe_options(parser)
    parser.add_argument(
        "--selector",
        metavar="NAME",
        help="a name from `evalsuite show selectors` (default: that of the recipe's `selection`)",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--budget",
        type=int,
        nargs="+",
        metavar="K",
        help="number of softmax layers, or of heads (head_ablation); of several a file each, OUT with -K in "
        "its name",
    )
    size.add_argument(
        "--ratio", metavar="SHARE", help="share of softmax layers (0.25), or softmax to linear (1:3)"
    )
    parser.add_argument(
        "--mixer",
        nargs="+",
        metavar="M",
        help="mixer of the other layers during the search, instead of the recipe's; of several a file each, "
        "OUT with -M in its name",
    )
    parser.add_argument(
        "--option",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        dest="options",
        help="options of the selector, such as held_out=64, and of ga_s2 tokens=300k snapshot_interval=10",
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file; the same command resumes")
    parser.add_argument(
        "--work",
        type=Path,
        help="folder for the all-linear student and progress logs, shared by all selectors of a teacher "
        "(default: `work` in the folder of --out)",
    )
    add_quiet(parser)
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Select layers, write the file and its page, and print a summary."""
    from evalsuite.distill import load_recipe
    from evalsuite.distill.selection import load_selector, select
    from evalsuite.foundation import ConfigError, write_text
    from evalsuite.reports.page.standalone import selection_page
    from evalsuite.reports.records.sidecars import read_selection

    set_recipe_data(arguments)
    recipe = load_recipe(arguments.recipe, arguments.overrides)
    planned = recipe.selection
    name = arguments.selector or (planned.selector if planned else None)
    if name is None:
        raise ConfigError(f"recipe '{recipe.name}' has no 'selection': --selector NAME is required")
    sized = arguments.budget is not None or arguments.ratio is not None
    if planned is None and not sized:
        raise ConfigError(f"recipe '{recipe.name}' has no 'selection': --budget or --ratio is required")
    own = planned.options if planned and planned.selector == name else {}
    selector = load_selector(name, arguments.options, own)
    budgets: list[int | None] = list(arguments.budget or [None if sized or not planned else planned.budget])
    ratio = arguments.ratio if sized or planned is None else planned.ratio
    mixers: list[str | None] = list(arguments.mixer or [None])
    for mixer, budget in product(mixers, budgets):
        out = arguments.out
        for many, part in ((mixers, mixer), (budgets, budget)):
            out = out.with_stem(f"{out.stem}-{part}") if len(many) > 1 else out
        value = select(
            recipe,
            selector,
            out,
            budget=budget,
            ratio=ratio,
            mixer=mixer,
            work=arguments.work,
            device=arguments.device,
            quiet=arguments.quiet,
        )
        page, selection = out.with_suffix(".html"), read_selection(out)
        write_text(page, selection_page(selection, out.name))
        print(f"{selection.selector} selects {selection.chosen}")
        for line in (*value["details"]["notes"], *_cost_lines(value)):
            print(line)
        print(f"{out}\n{page}")
    return 0


def _cost_lines(value: dict[str, Any]) -> list[str]:
    """Cost of a selection that trains candidates, and the savings of its early stop."""
    stop = value.get("stop")
    if stop is None:
        return []
    cost = value["details"]["cost"]
    reason = "the selection was stable" if stop["reason"] == "stable" else "the token budget was spent"
    spent, unshared = cost["student_tokens"], cost["tokens_without_sharing"]
    saved = stop["planned"] - stop["tokens"]
    steps = value["details"].get("steps", stop["step"])
    return [
        f"stopped at step {stop['step']:,} of {steps:,} because {reason}: "
        f"{spent:,} student tokens, {saved:,} saved by the early stop; "
        f"a separate run per layer would take {unshared:,} ({1 - spent / unshared:.0%} saved)"
    ]
