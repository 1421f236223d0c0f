"""What a file of one's own is, and whether it can be used: `evalsuite validate FILE`."""

import importlib.util
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from evalsuite.config import RunConfig, read_run_config
from evalsuite.distill.recipe.recipe import Recipe, load_recipe
from evalsuite.foundation import ConfigError, counted
from evalsuite.foundation.strict_yaml import read_yaml
from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports.admission import AdmissionRule, load_rule
from evalsuite.reports.gate.policy import Policy, load_policy
from evalsuite.tasks.benchmark import Benchmark, load_benchmark
from evalsuite.tasks.generator import generator_of
from evalsuite.tasks.requested import is_questions_file
from evalsuite.tasks.sources.documents import all_documents
from evalsuite.tasks.sources.transforms import TRANSFORMS
from evalsuite.tasks.suite import BENCHMARK_KEYS, Suite, load_suite, resolve


class FileKind(NamedTuple):
    """A kind of YAML file."""

    title: str
    keys: frozenset[str]
    marks: frozenset[str]
    """Keys that no other kind has."""
    describe: Callable[[Path], str]
    """Raises EvalsuiteError for a file that cannot be used, else returns what it holds."""


def validate(file: str) -> str:
    """Return what a file is and holds.

    Args:
        file: a path; that of a file of questions may be followed by columns (``q.csv:answer=solution``).

    Raises:
        ConfigError: a file of no known kind, or a mistake in it, with field, value and way out.
        DataError: rows that are no questions.
    """
    if is_questions_file(file):
        return f"{file}: questions, valid: {_questions(load_benchmark(file))}"
    path = Path(file)
    values = read_yaml(path)
    kind = KINDS[_kind(path, values)]
    return f"{path}: {kind.title}, valid: {kind.describe(path)}"


def _kind(path: Path, values: Mapping[str, Any]) -> str:
    """Return the kind whose keys a file has, be some of them misspelt."""
    known_keys = sorted({key for kind in KINDS.values() for key in kind.keys})
    keys = {match for key in values for match in get_close_matches(str(key), known_keys, 1, 0.75)}
    scores = {name: 2 * len(kind.marks & keys) + len(kind.keys & keys) for name, kind in KINDS.items()}
    best = max(scores, key=scores.__getitem__)
    if scores[best] and scores[best] > max(score for name, score in scores.items() if name != best):
        return best
    known = ", ".join(f"{kind.title} ({' or '.join(sorted(kind.marks))})" for kind in KINDS.values())
    raise ConfigError(
        f"{path}: no known kind of file; its keys are {', '.join(map(str, values)) or 'none'}; known: {known}"
    )


def _benchmark(path: Path) -> str:
    benchmark = load_benchmark(path)
    _check_names(benchmark, path)
    if any(source.file for _, source in benchmark.subject_sources):
        return _questions(benchmark)
    if benchmark.generated is not None:
        return f"{benchmark.generated.count:,} generated documents, {_protocols(benchmark)}"
    names = ", ".join(dict.fromkeys(source.name for _, source in benchmark.subject_sources))
    return f"documents of {names}, {_protocols(benchmark)}"


def _check_names(benchmark: Benchmark, path: Path) -> None:
    """Refuse names of a benchmark that only a run looks up. Raises ConfigError."""
    generator_of(benchmark)
    for _, source in benchmark.subject_sources:
        if source.transform is not None:
            TRANSFORMS.get_or_raise(source.transform, f"{path}: 'source.transform'")
    # Hosts that only report lack the harnesses.
    if benchmark.generation is not None and benchmark.generation.scorer is not None:
        from evalsuite.protocols.scorers import SCORERS

        SCORERS.get_or_raise(benchmark.generation.scorer, f"{path}: 'generation.scorer'")
    how = benchmark.loglikelihood
    if how is not None and "{subject}" not in how.task and importlib.util.find_spec("lm_eval") is not None:
        from evalsuite.protocols.loglikelihood import task_file

        task_file(benchmark, None, trust_remote_code=True)


def _questions(benchmark: Benchmark) -> str:
    """Read every row of a benchmark's files."""
    documents = [document for group in all_documents(benchmark) for document in group]
    choices = Counter(len(document.row["choices"]) for document in documents if "choices" in document.row)
    with_choices = f"with {min(choices)} to {max(choices)} choices" if choices else "with answers"
    if len(choices) == 1:
        with_choices = f"with {next(iter(choices))} choices"
    return f"{counted(len(documents), 'question')} {with_choices}, {_protocols(benchmark)}"


def _protocols(benchmark: Benchmark) -> str:
    return " and ".join(benchmark.protocols)


def _suite(path: Path) -> str:
    entries = resolve(load_suite(path), near=path.parent)
    for _, benchmark in entries:
        _check_names(benchmark, path)
        if any(source.file for _, source in benchmark.subject_sources):
            _questions(benchmark)
    protocols = Counter(protocol for entry, _ in entries for protocol in entry.protocols)
    counts = ", ".join(f"{protocols[name]} under {name}" for name in PROTOCOLS if protocols[name])
    return f"{counted(len(entries), 'benchmark')} ({counts})"


def _recipe(path: Path) -> str:
    recipe = load_recipe(path)
    for name in recipe.variants:
        load_recipe(f"{path}:{name}")
    variants = f", {counted(len(recipe.variants), 'variant')}" if recipe.variants else ""
    return counted(len(recipe.stages), "stage") + variants


def _policy(path: Path) -> str:
    rules = load_policy(path).rules
    for number, rule in enumerate(rules):
        if rule.baseline and not Path(rule.baseline).exists():
            raise ConfigError(f"{path}: 'rules.{number}.baseline' = '{rule.baseline}': no such run folder")
    return counted(len(rules), "rule")


def _run(path: Path) -> str:
    config = read_run_config(path)
    if config.suite is None:
        return "a run without its suite"
    suite = load_suite(config.suite)
    return f"suite {suite.name}, {counted(len(config.checkpoints), 'checkpoint')}"


def _rule(path: Path) -> str:
    rule = load_rule(path)
    return f"at least {counted(rule.min_documents, 'document')}"


def _keys(kind: Any) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in kind.model_fields.items())


KINDS = {
    "benchmark": FileKind(
        "benchmark",
        _keys(Benchmark),
        frozenset(BENCHMARK_KEYS) & _keys(Benchmark),
        _benchmark,
    ),
    "suite": FileKind(
        "suite", _keys(Suite), frozenset(("benchmarks", "include", "sampler", "seeds")), _suite
    ),
    "recipe": FileKind("recipe", _keys(Recipe), frozenset(("student", "stages", "architecture")), _recipe),
    "policy": FileKind("gate policy", _keys(Policy), frozenset(("rules",)), _policy),
    "run": FileKind(
        "run configuration",
        frozenset(each.name for each in fields(RunConfig)),
        frozenset(("suite", "checkpoints", "out")),
        _run,
    ),
    "rule": FileKind("admission rule", _keys(AdmissionRule), _keys(AdmissionRule), _rule),
}
"""Kinds of YAML files that evalsuite reads."""
