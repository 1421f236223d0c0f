"""`evalsuite distill`: train student checkpoints from a recipe."""

import argparse
import json
import re
from collections.abc import Sequence
from fnmatch import filter as matching
from pathlib import Path
from typing import TYPE_CHECKING

from evalsuite.cli.options import (
    add_executor_options,
    add_quiet,
    add_recipe_options,
    executor_arguments,
    set_recipe_data,
)
from evalsuite.foundation import ConfigError, DataError, counted
from evalsuite.foundation.parser import command

if TYPE_CHECKING:
    from evalsuite.distill import Recipe


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command."""
    parser = command(
        commands,
        "distill",
        help="train student checkpoints from a teacher, following a recipe",
        example=(
            "  evalsuite distill default --mixer gated_deltanet kda --set teacher=./model --out students\n"
            "  evalsuite distill pocket --dry-run\n"
            "  evalsuite distill smollm2-135m-instruct --variants all --data ./data --out students"
        ),
    )
    add_recipe_options(parser)
    parser.add_argument(
        "--mixer",
        nargs="+",
        metavar="M",
        help="mixers or named students, instead of the recipe's; variants that name their own keep them",
    )
    parser.add_argument(
        "--layers",
        nargs="+",
        default=[],
        metavar="FILE",
        help="layers that stay softmax, as `evalsuite select` wrote them, or FILE@STEP of its search; of "
        "several files a student each, named as they are, with MIXER- before it for several mixers",
    )
    parser.add_argument(
        "--variants",
        nargs="+",
        default=[],
        metavar="V",
        help="also train these variants of the recipe (names, patterns such as 't5-*', or all), each in "
        "OUT/variants/V",
    )
    parser.add_argument("--out", type=Path, help="folder for the checkpoints; repeat the command to resume")
    parser.add_argument(
        "--branch-from",
        type=Path,
        metavar="RUN",
        help="begin with the state of the run in this folder, whose stages so far must be the recipe's too",
    )
    parser.add_argument(
        "--track", metavar="TRACKER", help="also log losses to an experiment tracker: tensorboard or trackio"
    )
    parser.add_argument(
        "--kernel-configs",
        type=Path,
        metavar="FILE",
        help="measured configurations of Triton kernels, as --autotune wrote them "
        "(default: $EVALSUITE_KERNEL_CONFIGS; those of an H200 are shipped)",
    )
    parser.add_argument(
        "--autotune",
        type=Path,
        metavar="FILE",
        help="measure the kernel configurations that FILE lacks, and add them to it (minutes)",
    )
    add_executor_options(parser, "recipe and variants are distilled")
    parser.add_argument(
        "--dry-run", action="store_true", help="print tokens, FLOPs, memory and time, and exit"
    )
    parser.add_argument(
        "--check-data",
        action="store_true",
        help="print what the first documents of every source hold and how they are rendered, and exit",
    )
    parser.add_argument(
        "--make-stores",
        action="store_true",
        help="compute the teacher's output once, in the folders that stages name as teacher_store, and exit; "
        "repeat the command to resume",
    )
    add_quiet(parser)
    parser.set_defaults(call=run)


def run(arguments: argparse.Namespace) -> int:
    """Distill, or print the cost of it."""
    set_recipe_data(arguments)
    chosen = recipes(arguments)
    if arguments.dry_run:
        from evalsuite.distill import dry_run
        from evalsuite.distill.training.estimate import summary

        # A variant can have the recipe's name.
        costs = [
            (Path(folder).name or recipe.name, dry_run(recipe, mixers=mixers, device=arguments.device))
            for folder, recipe, mixers in chosen
        ]
        print(summary(costs) if len(costs) > 1 else costs[0][1])
        return 0
    if arguments.check_data:
        check_data([recipe for _, recipe, _ in chosen])
        return 0
    if arguments.make_stores:
        from evalsuite.distill.training.teacher_stores import make_stores, stored_stages

        with_stores = [recipe for _, recipe, _ in chosen if stored_stages(recipe)]
        # Where none names a store, the first is refused.
        for recipe in with_stores or [chosen[0][1]]:
            for store in make_stores(recipe, device=arguments.device, quiet=arguments.quiet):
                print(store, flush=True)
        others = [
            Path(folder).name or recipe.name for folder, recipe, _ in chosen if recipe not in with_stores
        ]
        if others:
            print(f"no stage names a teacher store: {', '.join(others)}")
        return 0
    if arguments.out is None:
        raise ConfigError("--out DIR is required (or --dry-run, --check-data or --make-stores)")
    from evalsuite.executors import open_executor
    from evalsuite.variants import Variant, distill_variants

    check_starts(chosen, arguments.out)
    options = {
        "device": arguments.device,
        "quiet": arguments.quiet,
        "kernel_configs": arguments.kernel_configs,
        "autotune": arguments.autotune,
        "branch_from": arguments.branch_from,
    }
    variants = [Variant(*each, arguments.out, options) for each in chosen]
    try:
        for made in distill_variants(
            variants, open_executor(arguments.executor, executor_arguments(arguments))
        ):
            print(made)
    except KeyboardInterrupt as interrupt:
        from evalsuite.cli.interrupts import describe_interrupt
        from evalsuite.distill.training.stop_signals import EXIT_SECONDS, end_process_after

        # A data worker that waits for the hub would be joined when the interpreter exits.
        end_process_after(EXIT_SECONDS, describe_interrupt(interrupt)[1])
        raise
    return 0


def check_data(chosen: "list[Recipe]") -> None:
    """Print what the sources of the recipes hold.

    Raises:
        DataError: a source has a problem; all have been printed.
    """
    from evalsuite.distill.data.inspection import inspect
    from evalsuite.distill.training.builders import load_recipe_tokenizer

    shown: dict[str, list[str]] = {}
    for recipe in chosen:
        for found in inspect(recipe, load_recipe_tokenizer(recipe)):
            text = str(found)
            if text not in shown:
                shown[text] = found.problems
                print(text + "\n", flush=True)
    problems = sum(map(len, shown.values()))
    if problems:
        raise DataError(f"{counted(problems, 'problem')} in the data, see PROBLEM above")
    print("no problem found")


def recipes(arguments: argparse.Namespace) -> list[tuple[str, "Recipe", list[str] | None]]:
    """Return the recipe and its requested variants: subfolder of --out, recipe, mixers.

    `--mixer` applies to variants too, except those that name mixers themselves, which they vary. `all` and
    patterns take a row once that has several names.

    Raises:
        ConfigError: two variants that train the same students.
    """
    from evalsuite.distill import load_recipe

    track = [] if arguments.track is None else [f"track={arguments.track}"]
    overrides = [*arguments.overrides, *track]
    plain = load_recipe(arguments.recipe, overrides)
    if layers := layer_overrides(arguments.layers, arguments.mixer or plain.student.mixers):
        overrides += layers
        plain = load_recipe(arguments.recipe, overrides)
    order = list(plain.variants)
    given = arguments.variants
    found = [each for name in given for each in matching(order, "*" if name == "all" else name) or [name]]
    rows = {name for name in found if name in given or plain.variants.get(name) not in found}
    # In the recipe's order, since one may start from another; load_recipe refuses unknown ones.
    names = sorted(rows, key=lambda name: order.index(name) if name in order else -1)
    joint = "," if ":" in arguments.recipe else ":"
    own = arguments.mixer if len(arguments.layers) < 2 else None
    chosen: list[tuple[str, Recipe, list[str] | None]] = [("", plain, own)]
    trained: dict[tuple[str, tuple[str, ...]], str] = {}
    for name in names:
        recipe = load_recipe(f"{arguments.recipe}{joint}{name}", overrides)
        variant = plain.overrides(name)
        names_mixers = "student.mixers" in variant or "mixers" in variant.get("student", {})
        mixers = None if names_mixers else own
        unnamed = recipe.model_copy(update={"name": plain.name})
        before = trained.setdefault((unnamed.hash, tuple(mixers or recipe.labels)), name)
        if before != name:
            raise ConfigError(
                f"{arguments.recipe}: variants '{before}' and '{name}' train the same students; leave one out"
                f" or, if they should be the same, write '{name}: {before}' in the recipe"
            )
        chosen.append((f"variants/{name}", recipe, mixers))
    return chosen


def check_starts(chosen: list[tuple[str, "Recipe", list[str] | None]], out: Path) -> None:
    """Check before training that every variant that starts from another one will find its checkpoint.

    Raises:
        ConfigError: that variant neither exists nor is trained before.
    """
    from evalsuite.distill.training.builders import resolve_checkpoints

    coming: set[str] = set()
    for folder, recipe, _ in chosen:
        starts = {start[1:] for start in recipe.student.initial_checkpoints.values() if start.startswith(":")}
        if not starts <= coming:
            resolve_checkpoints(recipe, out / folder)
        coming.add(Path(folder).name)


def layer_overrides(files: Sequence[str], mixers: Sequence[str]) -> list[str]:
    """Settings of the softmax layers of one file, or of a named student for each of several and each mixer.

    Raises:
        ConfigError: two files of one name.
    """
    if len(files) < 2:
        return [f"student.softmax_layers={json.dumps(file)}" for file in files]
    named = {
        re.sub(r"\.json(@(?=\d+$))?", lambda at: "-" if at[1] else "", Path(file).name): file
        for file in files
    }
    if len(named) < len(files):
        raise ConfigError("--layers: two files have the same name, which names their students")
    students = {
        f"{mixer}-{name}" if len(mixers) > 1 else name: {"mixer": mixer, "softmax_layers": file}
        for mixer in mixers
        for name, file in named.items()
    }
    return [f"student.named={json.dumps(students)}", f"student.mixers={json.dumps(list(students))}"]
