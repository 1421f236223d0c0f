"""`evalsuite show`: what can be used (mixers, objectives, scorers, suites, …), and what a checkpoint is."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from evalsuite.cli.options import add_data_option
from evalsuite.cli.parser import command
from evalsuite.foundation.registry import Registry, plugin_origin


def add(commands: argparse._SubParsersAction) -> None:
    """Add the command and its subjects."""
    parser = command(
        commands,
        "show",
        help="list what can be used, from mixers to benchmarks, or describe a checkpoint",
        example="  evalsuite show benchmarks\n  evalsuite show checkpoint runs/demo/students/gla",
    )
    subjects = parser.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    for name, call, text in (
        ("mixers", show_mixers, "the mixers and their options with defaults"),
        ("recipes", show_recipes, "the recipes that ship with evalsuite, and their variants"),
        ("objectives", show_objectives, "the training objectives and the settings that only they have"),
        ("schedules", show_schedules, "the learning-rate schedules and the settings that only they have"),
        ("optimizers", show_optimizers, "the optimizers and the settings that only they have"),
        ("families", show_families, "the families of teachers that can be distilled"),
        ("selectors", show_selectors, "the methods that choose the layers that stay softmax"),
        ("scorers", show_scorers, "the scorers of generated responses"),
        ("transforms", show_transforms, "what turns rows of a dataset into questions"),
        ("generators", show_generators, "what makes the documents of benchmarks without a dataset"),
        ("samplers", show_samplers, "what chooses the documents that a limit takes"),
        ("engines", show_engines, "the inference engines and whether they take arguments"),
        ("measures", show_measures, "the quantities of a report"),
        ("executors", show_executors, "what carries out the inference of a run"),
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
    benchmark.add_argument("name", help="a name from `evalsuite show benchmarks`, or a YAML file")
    benchmark.add_argument(
        "--sample", type=int, default=1, metavar="N", help="documents (default: %(default)s)"
    )
    benchmark.add_argument("--checkpoint", metavar="PATH", help="its tokenizer and chat template are used")
    add_data_option(benchmark)
    benchmark.add_argument(
        "--trust-remote-code", action="store_true", help="run Python code of a task file outside lm-eval"
    )
    benchmark.set_defaults(call=show_benchmark)
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
    """Print name, description and options of every mixer."""
    from evalsuite.models.mixers import MIXERS, option_defaults

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


def show_measures(arguments: argparse.Namespace) -> int:
    """Print the tables, leaderboard columns and gate metrics of every measure."""
    import evalsuite.reports.measures  # noqa: F401  # registers evalsuite's own
    from evalsuite.reports.measure import MEASURES

    for _ in print_registry(MEASURES, lambda measure: measure.describe()):
        pass
    return 0


def show_objectives(arguments: argparse.Namespace) -> int:
    """Print name, description and settings of every training objective."""
    from evalsuite.distill.recipe.stage import OBJECTIVES, Stage

    return _print_with_settings(OBJECTIVES, Stage)


def show_schedules(arguments: argparse.Namespace) -> int:
    """Print name, description and settings of every learning-rate schedule."""
    from evalsuite.distill.optim.schedules import SCHEDULES, Schedule

    return _print_with_settings(SCHEDULES, Schedule)


def show_optimizers(arguments: argparse.Namespace) -> int:
    """Print name, description and settings of every optimizer."""
    from evalsuite.distill.optim.optimizers import OPTIMIZERS, Optimizer

    return _print_with_settings(OPTIMIZERS, Optimizer)


def _print_with_settings(registry: Registry[Any], base: Any) -> int:
    for name in print_registry(registry):
        own = [key for key in registry[name].model_fields if key not in base.model_fields]
        if own:
            print("    settings: " + ", ".join(own))
    return 0


def show_families(arguments: argparse.Namespace) -> int:
    """Print the model type of every family of teachers and what distinguishes it."""
    from evalsuite.models.decoder.families import FAMILIES, Family

    list(print_registry(FAMILIES, Family.describe))
    return 0


def show_scorers(arguments: argparse.Namespace) -> int:
    """Print name and description of every scorer of generated responses."""
    from evalsuite.protocols.scorers import SCORERS, describe_scorer

    list(print_registry(SCORERS, describe_scorer))
    return 0


def show_transforms(arguments: argparse.Namespace) -> int:
    """Print name and description of every row transform."""
    from evalsuite.tasks.sources.transforms import TRANSFORMS

    list(print_registry(TRANSFORMS, lambda transform: transform.function.__doc__))
    return 0


def show_generators(arguments: argparse.Namespace) -> int:
    """Print name and description of every document generator."""
    from evalsuite.tasks.generator import GENERATORS

    list(print_registry(GENERATORS, lambda generator: generator.rows.__doc__))
    return 0


def show_samplers(arguments: argparse.Namespace) -> int:
    """Print name and description of every sampler."""
    from evalsuite.tasks.sources.documents import SAMPLERS

    list(print_registry(SAMPLERS))
    return 0


def show_engines(arguments: argparse.Namespace) -> int:
    """Print name, description and arguments of every inference engine."""
    from evalsuite.models.engines import ENGINES

    for name in print_registry(ENGINES):
        print(f"    --engine-args: {ENGINES[name].arguments_help or 'none'}")
    return 0


def show_executors(arguments: argparse.Namespace) -> int:
    """Print name and description of every executor."""
    from evalsuite.executors import EXECUTORS

    list(print_registry(EXECUTORS))
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
    usable = [name for name in SELECTORS if problems[name] is None or SELECTORS.origin(name) == "evalsuite"]
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


def show_checkpoint(arguments: argparse.Namespace) -> int:
    """Describe a checkpoint from its config and file headers."""
    from evalsuite.models.checkpoints.describe import describe

    print(describe(arguments.path))
    return 0
