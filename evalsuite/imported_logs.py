"""Logs of other harnesses, with what evalsuite knows about the benchmarks that they name."""

from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

from evalsuite.foundation import ConfigError, DataError, nearest
from evalsuite.reports.imports import IMPORTERS, KnownBenchmark, find_importer, import_logs
from evalsuite.reports.imports.frozen import FrozenDocument, FrozenLookup, FrozenTask, marks_of
from evalsuite.tasks.benchmark import known_benchmarks, load_benchmark
from evalsuite.tasks.harness_names import find_task
from evalsuite.tasks.recall import recall_numbers
from evalsuite.tasks.sources.documents import all_documents


def import_as_runs(
    sources: Sequence[tuple[str, Path]],
    out: Path,
    *,
    benchmarks: Collection[str] = (),
    data: Path | str | None = None,
) -> list[Path]:
    """Write one run folder per imported log; see `evalsuite.reports.imports.import_logs`.

    With `data`, a folder of frozen data, benchmarks that evalsuite knows are read onto its documents.
    """
    frozen = None if data is None else frozen_tasks(data)
    return import_logs(sources, out, lookup=known_benchmark, frozen=frozen, benchmarks=benchmarks)


def frozen_tasks(data: Path | str) -> FrozenLookup:
    """Find harness's tasks in a folder of frozen data; the lookup raises DataError for data that it lacks."""

    @cache
    def documents(name: str) -> dict[str | None, list[FrozenDocument]]:
        benchmark = load_benchmark(name)
        # Harnesses number the rows of the whole dataset.
        source = benchmark.source and benchmark.source.model_copy(update={"filters": {}})
        parts = all_documents(benchmark.model_copy(update={"source": source}), data_dir=data)
        found = [document for part in parts for document in part]
        by_subject: dict[str | None, list[FrozenDocument]] = {None: []}
        for each, marks in zip(found, marks_of([each.row for each in found]), strict=True):
            frozen = FrozenDocument(each.doc_id, marks, each.cluster)
            for subject in {None, each.subject}:
                by_subject.setdefault(subject, []).append(frozen)
        return by_subject

    def find(harness: str, name: str) -> FrozenTask | None:
        task = find_task(harness, name)
        if task is None:
            return None
        benchmark = task.benchmark.name
        try:
            rows = documents(benchmark)
        except DataError as error:
            raise DataError(f"'{name}' of {harness} is evalsuite's '{benchmark}': {error}") from None
        if task.subject not in rows:
            known = [subject for subject in rows if subject is not None]
            raise DataError(
                f"'{name}' of {harness}: the frozen data of '{benchmark}' have no subject "
                f"'{task.subject}'{nearest(str(task.subject), known)}"
            )
        return FrozenTask(benchmark, rows[task.subject])

    return find


def named_source(given: str) -> tuple[str, Path]:
    """Split `FORMAT:PATH`. Raises ConfigError if it is none, or names no importer."""
    name, colon, path = given.partition(":")
    if not (colon and path):
        raise ConfigError(
            f"--import {given}: must be FORMAT:PATH, with a format of {', '.join(IMPORTERS.names())}"
        )
    IMPORTERS.get_or_raise(name, "--import")
    return name, Path(path)


def find_source(path: Path | str) -> tuple[str, Path]:
    """The format of a log by its files. Raises ConfigError if no importer, or several, recognise it."""
    found = find_importer(Path(path))
    if found is None:
        raise ConfigError(
            f"{path}: no log of {', '.join(IMPORTERS.names())} is recognised here; pass the folder that the "
            "harness wrote, or state its format"
        )
    return found, Path(path)


def known_benchmark(name: str) -> KnownBenchmark | None:
    """What evalsuite knows about a benchmark; None if it has none of this name."""
    if name not in known_benchmarks():
        return None
    benchmark = load_benchmark(name)
    return KnownBenchmark(
        title=benchmark.title,
        category=benchmark.category,
        license=benchmark.license,
        citation=benchmark.citation,
        chances={protocol: benchmark.chance_under(protocol) for protocol in benchmark.protocols},
        recall=recall_numbers(benchmark),
        metrics={protocol: getattr(benchmark, protocol).metric for protocol in benchmark.protocols},
    )
