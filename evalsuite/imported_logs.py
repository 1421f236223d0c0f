"""Logs of other harnesses, with what evalsuite knows about the benchmarks that they name."""

from collections.abc import Collection, Sequence
from pathlib import Path

from evalsuite.foundation import ConfigError
from evalsuite.reports.imports import IMPORTERS, KnownBenchmark, find_importer, import_logs
from evalsuite.tasks.benchmark import known_benchmarks, load_benchmark
from evalsuite.tasks.recall import recall_numbers


def import_as_runs(
    sources: Sequence[tuple[str, Path]], out: Path, *, benchmarks: Collection[str] = ()
) -> list[Path]:
    """Write one run folder per imported log; see `evalsuite.reports.imports.import_logs`."""
    return import_logs(sources, out, lookup=known_benchmark, benchmarks=benchmarks)


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
    chance = benchmark.chance
    if benchmark.loglikelihood is not None and benchmark.loglikelihood.chance is not None:
        chance = benchmark.loglikelihood.chance
    return KnownBenchmark(
        title=benchmark.title,
        category=benchmark.category,
        license=benchmark.license,
        citation=benchmark.citation,
        chance=chance,
        recall=recall_numbers(benchmark),
        metrics={protocol: getattr(benchmark, protocol).metric for protocol in benchmark.protocols},
    )
