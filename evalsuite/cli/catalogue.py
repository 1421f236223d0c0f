"""What can be asked: the tables of `evalsuite show benchmarks` and `evalsuite show suites`."""

from collections.abc import Sequence
from pathlib import Path

from evalsuite.foundation import DataError, MissingDependencyError, progress
from evalsuite.tasks.benchmark import Benchmark, all_benchmarks
from evalsuite.tasks.data import where_from
from evalsuite.tasks.documents import count_documents
from evalsuite.tasks.resources import find
from evalsuite.tasks.suite import Entry, known_suites, load_suite, resolve

HUB = "hub"
SHORT = {"loglikelihood": "ranked", "generation": "written"}
Rows = list[tuple[str, ...]]


def benchmarks(data: Path | str | None) -> tuple[Sequence[str], Rows, list[str]]:
    """Return header, rows and notes of every benchmark.

    Args:
        data: a frozen folder, in which documents are counted; None takes EVALSUITE_DATA. With neither, the
            published numbers stand alone: the hub is not asked for a list.
    """
    known = list(all_benchmarks())
    there = None if where_from(data) == HUB else {each.name: _count(each, data) for each in _bar(known)}
    header = ("benchmark", "category", "protocols", "documents", "chance", "licence")
    rows: Rows = []
    notes = []
    for each in known:
        documents = _published(each)
        if there is not None and each.parts:
            documents = _of(there[each.name], each.published)
        rows.append((each.name, each.category, _protocols(each), documents, _chance(each), each.licence))
        if each.needs and not _has_all(each, data):
            notes.append(f"{each.name} needs {each.needs}")
    if there is None:
        notes.append(
            "Documents that are not generated come from the hub, or from a folder that "
            "`evalsuite prepare SUITE --data DIR` has frozen."
        )
    else:
        missing = [each.name for each in known if each.parts and there[each.name] is None]
        if missing:
            notes.append(
                f"Not in {where_from(data)}, and in need of `evalsuite prepare`: {', '.join(missing)}"
            )
    return header, rows, notes


def suites(data: Path | str | None) -> tuple[Sequence[str], Rows, list[str]]:
    """Return header, rows and notes of every suite; see `benchmarks` for `data`."""
    count = {} if where_from(data) == HUB else {each.name: _count(each, data) for each in all_benchmarks()}
    header = ["suite", "title", "benchmarks", "documents", "written answers"]
    rows: Rows = []
    notes = []
    for name in known_suites():
        suite = load_suite(name)
        pairs = resolve(suite)
        sizes = [_size(entry, benchmark) for entry, benchmark in pairs]
        known = sum(size for size in sizes if size is not None)
        documents = f"{known:,}" + ("" if None not in sizes else " or more")
        temperature = suite.sampling.temperature
        how = f"t {temperature:g}, {len(suite.seeds)} seeds" if temperature else "greedy"
        rows.append((name, suite.title, str(len(pairs)), documents, how))
        missing = [b.name for _, b in pairs if b.parts and count and count[b.name] is None]
        if missing:
            notes.append(f"{name}: no data here for {', '.join(missing)}")
    return header, rows, notes


def _bar(known: Sequence[Benchmark]) -> Sequence[Benchmark]:
    return list(progress(known, total=len(known), what="count", unit="set"))


def _count(benchmark: Benchmark, data: Path | str | None) -> int | None:
    """Documents that the folder holds; None where there are none."""
    if not benchmark.parts:
        return None
    try:
        return count_documents(benchmark, data_dir=data)
    except (DataError, MissingDependencyError):
        return None


def _has_all(benchmark: Benchmark, data: Path | str | None) -> bool:
    """Whether what a benchmark needs is known to be here; of what is no resource nobody can tell."""
    return bool(benchmark.resources) and all(find(each, data) for each in benchmark.resources)


def _published(benchmark: Benchmark) -> str:
    if benchmark.published is None:
        return "?"
    lengths = len(benchmark.contexts)
    contexts = f" x {lengths} length{'s' * (lengths > 1)}" if lengths else ""
    return f"{benchmark.published:,}{contexts}"


def _of(there: int | None, published: int | None) -> str:
    if there is None:
        return f"none of {published:,}" if published else "none"
    return f"{there:,}" if published in (None, there) else f"{there:,} of {published:,}"


def _protocols(benchmark: Benchmark) -> str:
    parts = []
    for protocol in benchmark.protocols:
        shots = getattr(benchmark, protocol).shots
        parts.append(SHORT[protocol] + (f" {shots}-shot" if shots else ""))
    return ", ".join(parts)


def _chance(benchmark: Benchmark) -> str:
    if benchmark.chance is None:
        return "-"
    return "1/choices" if benchmark.chance == "per_document" else f"{benchmark.chance:g}"


def _size(entry: Entry, benchmark: Benchmark) -> int | None:
    """Documents that a suite asks of a benchmark, those of all contexts together."""
    sizes = [size for size in (entry.limit, benchmark.published) if size is not None]
    return min(sizes) * max(1, len(entry.contexts)) if sizes else None
