"""What `<!-- generate: WHAT -->` may name: configuration classes, the command line, registries, results."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from docs._generate import commands, fields, registries
from docs._generate import tables as tables_of_results
from evalsuite.cli import catalogue
from evalsuite.distill.optim.optimizers import OPTIMIZERS, Optimizer
from evalsuite.distill.optim.schedules import SCHEDULES, Schedule
from evalsuite.distill.recipe import Recipe
from evalsuite.distill.recipe.data_sources import DATA_SOURCES, DataSourceConfig
from evalsuite.distill.recipe.stage import OBJECTIVES, Stage
from evalsuite.distill.selection import SELECTORS
from evalsuite.executors import EXECUTORS
from evalsuite.foundation.strict import Strict
from evalsuite.models.engines import ENGINES
from evalsuite.models.mixers import MIXERS
from evalsuite.protocols.scorers import SCORERS, Scorer
from evalsuite.reports.exports.formats import EXPORTERS
from evalsuite.reports.imports import IMPORTERS
from evalsuite.reports.measure import MEASURES
from evalsuite.reports.measures.leaderboard import COLUMNS
from evalsuite.reports.page.sections import ordered_sections
from evalsuite.tasks.generator import GENERATORS
from evalsuite.tasks.samplers import SAMPLERS
from evalsuite.tasks.sources.transforms import TRANSFORMS


def generate(what: str) -> str:
    """Return Markdown for a directive.

    Raises:
        ValueError: an unknown directive; MkDocs stops with it.
    """
    kind, *names = what.split()
    if kind == "fields":
        return fields.reference(*(load(name) for name in names))
    if kind == "csv":
        return tables_of_results.csv_table(names)
    if what not in DIRECTIVES:
        raise ValueError(
            f"unknown directive '{what}'; known: fields CLASS …, csv FILE …, {', '.join(DIRECTIVES)}"
        )
    return DIRECTIVES[what]()


def load(name: str) -> type:
    """Return the class of a dotted name, such as `evalsuite.distill.recipe.Recipe`."""
    module, _, attribute = name.rpartition(".")
    found: type = getattr(import_module(module), attribute)
    return found


def recipe() -> str:
    """Return the keys of recipes, with the settings of every source, objective, optimizer and schedule."""
    sources = lines_of(DataSourceConfig, [DATA_SOURCES[name] for name in registries.own(DATA_SOURCES)])
    stages = lines_of(Stage, [OBJECTIVES[name] for name in registries.own(OBJECTIVES)])
    optimizers = lines_of(Optimizer, [OPTIMIZERS[name] for name in registries.own(OPTIMIZERS)])
    schedules = lines_of(Schedule, [SCHEDULES[name] for name in registries.own(SCHEDULES)])
    return fields.reference(Recipe, *sources, *stages, *optimizers, *schedules)


def mixer_options() -> str:
    """Return the options of every mixer."""
    return fields.reference(*lines_of(object, [MIXERS[name].Options for name in registries.own(MIXERS)]))


def selector_options() -> str:
    """Return the options of every selector."""
    return fields.reference(*lines_of(Strict, [SELECTORS[name] for name in registries.own(SELECTORS)]))


def lines_of(root: type, kinds: list[type]) -> list[type]:
    """Return configuration classes, each after those that it derives from."""
    bases = [
        base
        for kind in kinds
        for base in reversed(kind.__mro__)
        if base is not root and issubclass(base, root) and fields.is_config(base)
    ]
    return list(dict.fromkeys(bases))


def mixers() -> str:
    """Return mixers with their taxonomy and presets."""
    header, rows, notes = catalogue.mixers()
    own = registries.own(MIXERS)
    taxonomy = [header, ["---"] * len(header), *((f"`{row[0]}`", *row[1:]) for row in rows if row[0] in own)]
    taxonomy_table = "\n".join(f"| {' | '.join(row)} |" for row in taxonomy)
    presets = []
    for name in own:
        for preset, values in getattr(MIXERS[name].Options, "presets", {}).items():
            settings = ", ".join(
                f"`{key}: {fields.in_yaml(value).strip('`')}`" for key, value in values.items()
            )
            presets.append(f"| `{name}` | `{preset}` | {settings or 'the defaults'} |")
    head = "| mixer | preset | options |\n|---|---|---|"
    return (
        f"{registries.table(MIXERS)}\n\n### Taxonomy\n\n{taxonomy_table}\n\n{notes[0]}\n\n"
        f"### Presets\n\n{head}\n" + "\n".join(presets)
    )


def rule_metrics() -> str:
    """Return the metrics of gate rules with their bounds and options."""
    rows = [
        f"| `{name}` | `{each.bound}` | {each.unit} | "
        f"{'–' if each.unchanged is None else 'yes'} | "
        f"{f'`--{each.bound}-{name}`' if each.has_option else '–'} | {each.hint} |"
        for measure in registries.own(MEASURES)
        for name, each in MEASURES[measure].metrics.items()
    ]
    return "\n".join(
        ("| metric | bound | unit | `within` | option | quantity |", "|---|---|---|---|---|---|", *rows)
    )


def tables() -> str:
    """Return the tables of evalsuite's measures, and which of them a report always has."""
    rows = [
        f"| `{table.name}.csv` | {table.title} | {'always' if table.is_always_written else 'with rows'} |"
        for name in registries.own(MEASURES)
        for table in MEASURES[name].tables
    ]
    return "\n".join(("| file | table | written |", "|---|---|---|", *rows))


def columns() -> str:
    """Return the columns of the leaderboard."""
    others = (each for name in registries.own(MEASURES) for each in MEASURES[name].columns)
    rows = [f"| `{each.name}` | {each.hint} |" for each in (*COLUMNS, *others) if each.hint]
    return "\n".join(("| leaderboard column | description |", "|---|---|", *rows))


def sections() -> str:
    """Return the sections of the page, from the top to its end."""
    rows = [f"| `{each.id}` | {each.title} |" for each in ordered_sections()]
    return "\n".join(("| page section | title |", "|---|---|", *rows))


DIRECTIVES: dict[str, Callable[[], Any]] = {
    "commands": commands.reference,
    "recipe": recipe,
    "mixers": mixers,
    "mixer options": mixer_options,
    "objectives": lambda: registries.table(OBJECTIVES),
    "scorers": lambda: registries.table(SCORERS, Scorer.describe),
    "transforms": lambda: registries.table(TRANSFORMS, lambda each: each.function.__doc__),
    "samplers": lambda: registries.table(SAMPLERS),
    "generators": lambda: registries.table(GENERATORS, lambda each: each.rows.__doc__),
    "engines": lambda: registries.table(ENGINES),
    "executors": lambda: registries.table(EXECUTORS),
    "selectors": lambda: registries.table(SELECTORS, lambda each: f"{each.title()} ({each.source})"),
    "selector options": selector_options,
    "rule metrics": rule_metrics,
    "tables": tables,
    "columns": columns,
    "sections": sections,
    "importers": lambda: registries.table(IMPORTERS, lambda each: each.title),
    "exporters": lambda: registries.table(EXPORTERS, lambda each: f"{each.title}. {each.__doc__}"),
}
"""Directive → the Markdown that takes its place."""
