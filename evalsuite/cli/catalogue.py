"""Tables of `evalsuite show benchmarks`, `evalsuite show suites` and `evalsuite show mixers`."""

from collections.abc import Sequence
from pathlib import Path

from evalsuite.foundation import DataError, MissingDependencyError, counted, progress
from evalsuite.foundation.registry import plugin_origin
from evalsuite.tasks.benchmark import BENCHMARKS, Benchmark, all_benchmarks, known_benchmarks
from evalsuite.tasks.sources.assets import find_asset
from evalsuite.tasks.sources.data import source_name
from evalsuite.tasks.sources.documents import count_documents
from evalsuite.tasks.suite import Entry, known_suites, load_suite, resolve

HUB = "hub"
NONE = "–"
MIXER_SHAPE = "SmolLM2-135M"
"""Shape whose layers state the sizes in the table of mixers."""
PROTOCOL_NAMES = {"loglikelihood": "log-likelihood", "generation": "generation"}
Rows = list[tuple[str, ...]]


def benchmarks(data: Path | str | None) -> tuple[Sequence[str], Rows, list[str]]:
    """Return header, rows and notes of every benchmark.

    Args:
        data: a frozen folder, whose documents are counted; None takes EVALSUITE_DATA. Without a folder, only
            the published numbers are listed, and the hub is not contacted.
    """
    known = list(all_benchmarks())
    problems = {name: problem for name in known_benchmarks() if (problem := BENCHMARKS.problem(name))}
    there = None if source_name(data) == HUB else {each.name: _count(each, data) for each in _bar(known)}
    header = ("benchmark", "category", "protocols", "documents", "chance", "license")
    rows: Rows = []
    notes = []
    for each in known:
        documents = _published(each)
        if there is not None and each.subject_sources:
            documents = _available(there[each.name], each.expected_documents)
        license = each.license + plugin_origin(BENCHMARKS, each.name)
        rows.append((each.name, each.category, _protocols(each), documents, _chance(each), license))
        if each.requires and not _has_all(each, data):
            notes.append(f"{each.name} needs {each.requires}")
    if there is None:
        notes.append(
            "Documents come from the hub unless they are generated; freeze them with "
            "`evalsuite prepare SUITE --data DIR` to work offline."
        )
    else:
        missing = [each.name for each in known if each.subject_sources and there[each.name] is None]
        if missing:
            notes.append(f"Not in {source_name(data)}; run `evalsuite prepare` for: {', '.join(missing)}")
    for name, problem in problems.items():
        unusable = "" if BENCHMARKS.origin(name) == "evalsuite" else "cannot be used: "
        notes.append(f"{name}: {unusable}{problem}")
    return header, rows, notes


def mixers() -> tuple[Sequence[str], Rows, list[str]]:
    """Return header, rows and notes of the taxonomy of every mixer with default options."""
    from evalsuite.models.benchmark.random_models import read_shape
    from evalsuite.models.checkpoints.describe import format_bytes
    from evalsuite.models.decoder.taxonomy import taxonomy
    from evalsuite.models.mixers import MIXERS

    _, shape = read_shape(MIXER_SHAPE)
    header = ("mixer", "update", "decay", "decay per", "state", "per token")
    rows: Rows = []
    notes = [
        f"State and per token: cache of one layer of {MIXER_SHAPE}'s shape, in bfloat16 with recurrent "
        "states in float32."
    ]
    for name in MIXERS:
        if MIXERS.origin(name) != "evalsuite" and MIXERS.problem(name) is not None:
            continue
        try:
            found = taxonomy(name, shape)
        except Exception as error:
            # A mixer of another package can fail in any way, and the listing goes on.
            notes.append(f"{name}: no layer of this shape: {error or type(error).__name__}")
            continue
        sizes = (format_bytes(size) if size else NONE for size in (found.state_bytes, found.token_bytes))
        kinds = (found.update or NONE, found.decay or NONE, found.granularity or NONE)
        rows.append((name + plugin_origin(MIXERS, name), *kinds, *sizes))
    return header, rows, notes


def suites(data: Path | str | None) -> tuple[Sequence[str], Rows, list[str]]:
    """Return header, rows and notes of every suite; see `benchmarks` for `data`."""
    count = {} if source_name(data) == HUB else {each.name: _count(each, data) for each in all_benchmarks()}
    header = ["suite", "title", "benchmarks", "documents", "sampling"]
    rows: Rows = []
    notes = []
    for name in known_suites():
        suite = load_suite(name)
        pairs = resolve(suite)
        sizes = [_size(entry, benchmark) for entry, benchmark in pairs]
        known = sum(size for size in sizes if size is not None)
        documents = f"{known:,}" + ("" if None not in sizes else " or more")
        temperature = suite.sampling.temperature
        how = f"t {temperature:g}, {counted(len(suite.seeds), 'seed')}" if temperature else "greedy"
        rows.append((name, suite.title, str(len(pairs)), documents, how))
        missing = [b.name for _, b in pairs if b.subject_sources and count and count[b.name] is None]
        if missing:
            notes.append(f"{name}: no data here for {', '.join(missing)}")
    return header, rows, notes


def _bar(known: Sequence[Benchmark]) -> Sequence[Benchmark]:
    return list(progress(known, total=len(known), what="count documents", unit="benchmark"))


def _count(benchmark: Benchmark, data: Path | str | None) -> int | None:
    """Return the number of documents in the folder; None without any."""
    if not benchmark.subject_sources:
        return None
    try:
        return count_documents(benchmark, data_dir=data)
    except (DataError, MissingDependencyError):
        return None


def _has_all(benchmark: Benchmark, data: Path | str | None) -> bool:
    """Return whether all requirements of a benchmark are known to be met; only assets can be checked."""
    return bool(benchmark.assets) and all(find_asset(each, data) for each in benchmark.assets)


def _published(benchmark: Benchmark) -> str:
    if benchmark.expected_documents is None:
        return "?"
    lengths = len(benchmark.contexts)
    contexts = f" x {lengths} length{'s' * (lengths > 1)}" if lengths else ""
    return f"{benchmark.expected_documents:,}{contexts}"


def _available(there: int | None, published: int | None) -> str:
    if there is None:
        return f"none of {published:,}" if published else "none"
    return f"{there:,}" if published in (None, there) else f"{there:,} of {published:,}"


def _protocols(benchmark: Benchmark) -> str:
    parts = []
    for protocol in benchmark.protocols:
        num_fewshot = getattr(benchmark, protocol).num_fewshot
        parts.append(PROTOCOL_NAMES[protocol] + (f" {num_fewshot}-shot" if num_fewshot else ""))
    return ", ".join(parts)


def _chance(benchmark: Benchmark) -> str:
    if benchmark.chance is None:
        return "-"
    return "1/choices" if benchmark.chance == "per_document" else f"{benchmark.chance:g}"


def _size(entry: Entry, benchmark: Benchmark) -> int | None:
    """Return the number of documents of a benchmark in a suite, over all contexts."""
    sizes = [size for size in (entry.limit, benchmark.expected_documents) if size is not None]
    return min(sizes) * max(1, len(entry.contexts)) if sizes else None
