"""Logs of other harnesses, with what evalsuite knows about the benchmarks that they name."""

from collections.abc import Collection, Sequence
from pathlib import Path

from evalsuite.reports.imports import KnownBenchmark, import_logs
from evalsuite.tasks.benchmark import known_benchmarks, load_benchmark


def import_as_runs(
    sources: Sequence[tuple[str, Path]], out: Path, *, benchmarks: Collection[str] = ()
) -> list[Path]:
    """Write one run folder per imported log; see `evalsuite.reports.imports.import_logs`."""
    return import_logs(sources, out, lookup=known_benchmark, benchmarks=benchmarks)


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
        metrics={protocol: getattr(benchmark, protocol).metric for protocol in benchmark.protocols},
    )
