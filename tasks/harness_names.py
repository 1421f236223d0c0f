"""Names of other harnesses' tasks: which benchmark, and which subject of it, a log is about.

The benchmarks themselves say it: `loglikelihood.task` is lm-eval's task file, `generation.dataset` with the
source's `config` is EvalScope's dataset with its subset.
"""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from evalsuite.tasks.benchmark import Benchmark, known_benchmarks, load_benchmark

OWN = "evalsuite"
"""Dataset, and folder of task files, that are evalsuite's and not the harness's."""
_SUBJECT = "{subject}"


class NamedTask(NamedTuple):
    """What a harness's task is to evalsuite."""

    benchmark: Benchmark
    subject: str | None
    """None: all of them, or the benchmark has none."""


def find_task(harness: str, name: str) -> NamedTask | None:
    """Return the benchmark whose rows a harness's task reads, in their order; None if none is known to.

    Args:
        harness: title of an importer.
        name: as the harness writes it, such as ``mmlu_anatomy`` (lm-eval) or ``arc.ARC-Easy`` (EvalScope).
    """
    if harness == "lm-eval":
        return _lm_eval_task(name)
    return _evalscope_task(*name.partition(".")[::2]) if harness == "EvalScope" else None


def _lm_eval_task(name: str) -> NamedTask | None:
    exact, by_subject = [], []
    for benchmark in _read_in_order():
        how = benchmark.loglikelihood
        stem = "" if how is None else _task_name(how.task)
        if benchmark.name == name or stem == name:
            exact.append(NamedTask(benchmark, None))
        elif _SUBJECT in stem:
            pattern = re.escape(stem).replace(re.escape(_SUBJECT), "(.+)")
            by_subject += [NamedTask(benchmark, found[1])] if (found := re.fullmatch(pattern, name)) else []
    return _only(exact or by_subject, name)


def _task_name(file: str) -> str:
    """The task that a file of lm-eval defines: its name, or that of its folder for ``default.yaml``."""
    path = PurePosixPath(file)
    if path.parts[0] == OWN:
        return ""
    return path.parent.name if path.stem == "default" else path.stem


def _evalscope_task(dataset: str, subset: str) -> NamedTask | None:
    found = []
    for benchmark in _read_in_order():
        how, source = benchmark.generation, benchmark.source
        if how is None or source is None or how.dataset != dataset:
            continue
        has_subjects = bool(source.subject_column or source.configs)
        if has_subjects == bool(subset) or source.config == subset:
            found.append(NamedTask(benchmark, subset if has_subjects else None))
    return _only(found, dataset)


def _read_in_order() -> Iterator[Benchmark]:
    """Benchmarks whose documents are the rows of a dataset as it lies, with the harness's own prompts."""
    for name in known_benchmarks():
        benchmark = load_benchmark(name)
        whole = benchmark.generated is None and not any(
            each.contexts for _, each in benchmark.subject_sources
        )
        if whole and benchmark.completion is None and benchmark.prefix is None:
            yield benchmark


def _only(found: list[NamedTask], name: str) -> NamedTask | None:
    """The only one, or the one of several that is called so."""
    return next((each for each in found if len(found) == 1 or each.benchmark.name == name), None)
