"""`evalsuite show`: what can be used (mixers, objectives, scorers, suites, …), and what a checkpoint is."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from evalsuite.cli.options import add_data_option
from evalsuite.foundation.parser import command
from evalsuite.foundation.registry import Registry, plugin_origin

LISTED = {
    "objectives": ("distill.recipe.stage:OBJECTIVES:Stage", "the training objectives and their own settings"),
    "schedules": (
        "distill.optim.schedules:SCHEDULES:Schedule",
        "the learning-rate schedules and settings",
    ),
    "optimizers": ("distill.optim.optimizers:OPTIMIZERS:Optimizer", "the optimizers and their own settings"),
    "families": ("models.decoder.families:FAMILIES", "the families of teachers that can be distilled"),
    "scorers": ("protocols.scorers:SCORERS", "the scorers of generated responses"),
    "transforms": ("tasks.sources.transforms:TRANSFORMS", "what turns rows of a dataset into questions"),
    "generators": ("tasks.generator:GENERATORS", "what makes the documents of benchmarks without a dataset"),
    "samplers": ("tasks.samplers:SAMPLERS", "what chooses the documents that a limit takes"),
    "measures": ("reports.measures:MEASURES", "the quantities of a report"),
    "executors": ("executors:EXECUTORS", "what carries out the inference of a run"),
}
"""Subject → module of evalsuite, registry and the class whose settings all of its classes have; help."""


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command and its subjects."""
    parser = command(
        commands,
        "show",
        help="list what can be used, from mixers to benchmarks, or describe a checkpoint",
        example="  evalsuite show benchmarks\n  evalsuite show checkpoint runs/demo/students/gla",
    )
    subjects = parser.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    for name, (_, text) in LISTED.items():
        subject = subjects.add_parser(name, help=text, description=text)
        subject.set_defaults(call=show_registry)
    for name, call, text in (
        ("mixers", show_mixers, "the mixers: update rule, decay, state, and options with defaults"),
        ("recipes", show_recipes, "the recipes that ship with evalsuite, and their variants"),
        ("selectors", show_selectors, "the methods that choose the layers that stay softmax"),
        ("engines", show_engines, "the inference engines and whether they take arguments"),
        ("suites", show_suites, "the suites and their benchmarks"),
        ("benchmarks", show_benchmarks, "the benchmarks with protocols, documents, chance level and license"),
    ):
        subject = subjects.add_parser(name, help=text, description=text)
        subject.set_defaults(call=call)
        if name in ("suites", "benchmarks"):
            add_data_option(subject)
    benchmark = subjects.add_parser(
        "benchmark", help="prompts of a benchmark, exactly as a model receives them"
    )
    benchmark.add_argument(
        "name", help="a name from `evalsuite show benchmarks`, or a YAML or questions file"
    )
    benchmark.add_argument(
        "--sample", type=int, default=1, metavar="N", help="documents (default: %(default)s)"
    )
    benchmark.add_argument("--checkpoint", metavar="PATH", help="its tokenizer and chat template are used")
    add_data_option(benchmark)
    benchmark.add_argument(
        "--trust-remote-code", action="store_true", help="run Python code of a task file outside lm-eval"
    )
    benchmark.set_defaults(call=show_benchmark)
    files = subjects.add_parser(
        "selections", help="layers that `evalsuite select` chose, and whether selections of one teacher agree"
    )
    files.add_argument("files", nargs="+", metavar="FILE", help="JSON files of `evalsuite select`")
    files.set_defaults(call=show_selections)
    checkpoint = subjects.add_parser(
        "checkpoint", help="architecture, size and cache of a checkpoint, without loading its weights"
    )
    checkpoint.add_argument("path", help="hub id, folder, GGUF file or 'pocket'")
    checkpoint.set_defaults(call=show_checkpoint)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a text table of `rows` aligned under `header`."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [header, tuple("-" * width for width in widths), *rows]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def first_sentence(text: str | None) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return " ".join((text or "").split("\n\n")[0].split())


def show_mixers(arguments: argparse.Namespace) -> int:
    """Print the taxonomy of all mixers, then name, description and options of each."""
    from evalsuite.cli import catalogue
    from evalsuite.models.mixers import MIXERS, option_defaults

    _print_catalogue(*catalogue.mixers())
    print()
    for name in print_registry(MIXERS):
        kind = MIXERS[name]
        if defaults := option_defaults(kind.Options):
            print("    " + ", ".join(f"{option}={value}" for option, value in defaults.items()))
        for preset, values in getattr(kind.Options, "presets", {}).items():
            if values:
                print(f"    preset {preset}: " + ", ".join(f"{key}={value}" for key, value in values.items()))
    return 0


def print_registry(
    registry: Registry[Any], describe: Callable[[Any], str | None] = lambda item: item.__doc__
) -> Iterator[str]:
    """Print a line for every definition, and yield the names of those that can be used.

    Plugins are followed by their package; one that cannot be used, by the reason.

    Args:
        describe: docstring of a definition; its first sentence is printed.
    """
    for name in registry:
        problem, plugin = registry.problem(name), plugin_origin(registry, name)
        if problem is None:
            print(f"{name}: {first_sentence(describe(registry[name]))}{plugin}")
            yield name
        elif plugin:
            print(f"{name}: cannot be used: {problem}")
        else:
            print(f"{name}: {first_sentence(describe(registry[name]))}\n    {problem}")
            yield name


def show_registry(arguments: argparse.Namespace) -> int:
    """Print name, description and settings of every definition of a registry."""
    module, name, *base = LISTED[arguments.subject][0].split(":")
    home = import_module(f"evalsuite.{module}")
    registry = getattr(home, name)
    for each in print_registry(registry, described):
        common = {} if not base else getattr(home, base[0]).model_fields
        own = [key for key in registry[each].model_fields if key not in common] if base else []
        if own:
            print("    settings: " + ", ".join(own))
    return 0


def described(item: Any) -> str | None:
    """Return the docstring of a definition, or of the function that it holds."""
    if hasattr(item, "describe"):
        return str(item.describe())
    return getattr(item, "function", getattr(item, "rows", item)).__doc__


def show_engines(arguments: argparse.Namespace) -> int:
    """Print name, description and arguments of every inference engine."""
    from evalsuite.models.engines import ENGINES

    for name in print_registry(ENGINES):
        print(f"    --engine-args: {ENGINES[name].arguments_help or 'none'}")
    return 0


def show_recipes(arguments: argparse.Namespace) -> int:
    """Print name, title, stages and variants of every shipped recipe."""
    from evalsuite.distill import known_recipes, load_recipe

    for name in known_recipes():
        recipe = load_recipe(name)
        print(f"{name}: {recipe.title}")
        print("    stages: " + ", ".join(f"{stage.name} {stage.tokens:,} tokens" for stage in recipe.stages))
        if recipe.variants:
            print("    variants: " + ", ".join(sorted(recipe.variants)))
    return 0


def show_selectors(arguments: argparse.Namespace) -> int:
    """Print method, requirements and source of each selector, and the published layer sets."""
    from evalsuite.distill.selection import SELECTORS
    from evalsuite.distill.selection.selector import REQUIREMENTS
    from evalsuite.distill.selection.selectors.fixed_sets import published_sets

    problems = {name: SELECTORS.problem(name) for name in SELECTORS}
    usable = list(filter(SELECTORS.is_usable, SELECTORS))
    usable.sort(key=lambda name: REQUIREMENTS.index(SELECTORS[name].requires))
    rows = [
        (name, each.requires, each.title(), each.source + plugin_origin(SELECTORS, name))
        for name, each in ((name, SELECTORS[name]) for name in usable)
    ]
    print(table(("selector", "needs", "method", "source"), rows))
    for name, problem in problems.items():
        if problem is not None:
            print(f"{name}: {problem}" if name in usable else f"{name}: cannot be used: {problem}")
    sets = [
        (name, f"{s.teacher} ({s.layers})", ", ".join(map(str, s.sets)))
        for name, s in published_sets().items()
    ]
    print("\n" + table(("published set (selector fixed)", "teacher (layers)", "budgets"), sets))
    return 0


def show_suites(arguments: argparse.Namespace) -> int:
    """Print benchmarks, documents and sampling of each suite."""
    from evalsuite.cli import catalogue

    return _print_catalogue(*catalogue.suites(arguments.data))


def show_benchmarks(arguments: argparse.Namespace) -> int:
    """Print protocols, documents, chance and license of every benchmark."""
    from evalsuite.cli import catalogue

    return _print_catalogue(*catalogue.benchmarks(arguments.data))


def _print_catalogue(header: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> int:
    print(table(header, rows))
    if notes:
        print("\n" + "\n".join(notes))
    return 0


def show_benchmark(arguments: argparse.Namespace) -> int:
    """Print prompts of documents under each protocol."""
    from evalsuite.evaluation.prompts import sample_prompts

    print(
        sample_prompts(
            arguments.name,
            arguments.sample,
            data_dir=arguments.data,
            checkpoint=arguments.checkpoint,
            trust_remote_code=arguments.trust_remote_code,
        )
    )
    return 0


def show_selections(arguments: argparse.Namespace) -> int:
    """Print the layers of selection files, and the agreement of all pairs of one teacher."""
    from evalsuite.reports.measures.layers import distinct_names
    from evalsuite.reports.measures.selection_pairs import SELECTION_PAIRS, selection_pairs
    from evalsuite.reports.records.sidecars import read_selection
    from evalsuite.reports.table import ALONE

    found = [read_selection(Path(path)) for path in arguments.files]
    names = distinct_names(found, {})
    layers = [each.chosen if each.heads else " ".join(map(str, sorted(each.layers))) for each in found]
    print(table(("selection", "layers", "file"), list(zip(names, layers, arguments.files, strict=True))))
    if pairs := selection_pairs(found, names):
        print(f"\n{SELECTION_PAIRS.of(pairs).terminal(ALONE)}")
    return 0


def show_checkpoint(arguments: argparse.Namespace) -> int:
    """Describe a checkpoint from its config and file headers."""
    from evalsuite.models.checkpoints.location import locate_here

    # A wrong path is refused before transformers is imported, which takes seconds.
    locate_here(arguments.path)
    if sys.stderr.isatty():
        print("importing transformers, which counts the layers …", file=sys.stderr)
    from evalsuite.models.checkpoints.describe import describe

    print(describe(arguments.path))
    return 0
