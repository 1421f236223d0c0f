"""Build phase: documents become requests in token ids, once per tokenizer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from evalsuite.evaluation.checkpoints import CheckpointRegistry, LocalCheckpoint
from evalsuite.evaluation.documents import LoadedDocuments, load_documents
from evalsuite.evaluation.environment import update_environment
from evalsuite.evaluation.plan import (
    ResolvedSuite,
    benchmarks_in,
    built_suite,
    count_documents,
    grow,
    make_manifest,
)
from evalsuite.evaluation.processes.workers import Shared, WorkerPool
from evalsuite.evaluation.run_paths import (
    Cell,
    cell_documents,
    cells_of,
    documents_path,
    read_built,
    read_documents,
    requests_path,
    write_documents,
    write_requests,
)
from evalsuite.foundation import RunFolderError, content_hash, progress
from evalsuite.foundation.context_limits import context_name
from evalsuite.protocols.generation import GenerationBenchmark
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.protocols.request_set import RequestSet
from evalsuite.protocols.tokenization import Encoder
from evalsuite.reports.run import (
    DivergedStudent,
    Manifest,
    is_run_folder,
    still_diverged,
    write_manifest,
)
from evalsuite.tasks.benchmark import Benchmark
from evalsuite.tasks.sources.data import source_name
from evalsuite.tasks.sources.documents import Document, fewshot_documents

Harness = LogLikelihoodBenchmark | GenerationBenchmark
Data = Path | str | None


def build_requests(
    run: Path,
    resolved: ResolvedSuite,
    checkpoints: Sequence[LocalCheckpoint],
    data_dir: Data,
    *,
    diverged: Sequence[DivergedStudent] = (),
    skip_missing: bool = False,
    strict: bool = False,
    trust_remote_code: bool = False,
    quiet: bool = False,
    pool: WorkerPool | None = None,
) -> Manifest:
    """Write manifest, documents and requests of a run, which grows by what is new; requests are reused.

    The workers of `pool` share the benchmarks. Without a pool, and for checkpoints that bring their own code,
    all are built in this process.

    Args:
        diverged: students without a checkpoint, for the manifest.

    Raises:
        RunFolderError: the folder holds a run whose requests other options would change, or whose data has
            changed.
        ConfigError, DataError: as `load_documents`.
    """
    if pool is None or trust_remote_code:
        pool = WorkerPool()
    before = read_built(run) if is_run_folder(run) else None
    grown: _Growth | None = None
    new = {each.weights_id for each in checkpoints}
    others = [each for each in before.checkpoints if each.weights_id not in new] if before else []
    # The run's labels stay, while those of these checkpoints may change.
    registry = CheckpointRegistry(others)
    checkpoints = [replace(each, label=registry.add(each)) for each in checkpoints]
    if before is not None:
        # What an earlier call left out stays out.
        resolved = grow(run, before, resolved.without(before.left_out))
        load = partial(load_documents, skip_missing=skip_missing, strict=strict, pool=pool)
        grown = _grow_documents(run, before, resolved, checkpoints, partial(load, data_dir=data_dir))
        resolved = resolved.without(grown.left_out)
    if grown is None:
        # Requests without a manifest come from an interrupted build.
        loaded = load_documents(
            resolved, checkpoints, data_dir, skip_missing=skip_missing, strict=strict, pool=pool
        )
        resolved, found = resolved.without(loaded.left_out), loaded.documents
        left_out, incomplete = loaded.left_out, loaded.partial
        for name, documents in found.items():
            write_documents(documents_path(run, name), documents)
    else:
        found, left_out, incomplete = grown.documents, grown.left_out, grown.incomplete
    cells = resolved.cells({name: len(documents) for name, documents in found.items()})
    counts = {
        (cell.benchmark, cell.protocol): count_documents(
            cell_documents(found[cell.benchmark], cell, resolved.suite.seed)
        )
        for cell in cells
    }
    manifest = replace(
        make_manifest(resolved, checkpoints, counts, diverged),
        data=source_name(data_dir),
        documents={name: _documents_hash(each) for name, each in found.items()},
        left_out=left_out,
        partial=incomplete,
    )
    if before is not None:
        manifest = _merged(run, before, manifest)
        _make_room(run, before, manifest, found, checkpoints)
    for tokenizer, group in _by_tokenizer(checkpoints).items():
        missing = [
            cell for cell in cells if before is None or not requests_path(run, tokenizer, cell).is_file()
        ]
        if missing:
            _build_for_tokenizer(
                run,
                resolved,
                group,
                missing,
                found,
                data_dir,
                pool,
                trust_remote_code=trust_remote_code,
                quiet=quiet,
            )
    update_environment(run)
    write_manifest(run, manifest)
    return manifest


@dataclass(frozen=True, kw_only=True)
class _Growth:
    """Documents of a run that grows."""

    documents: dict[str, list[Document]]
    left_out: dict[str, str]
    incomplete: dict[str, tuple[int, ...]]


def _grow_documents(
    run: Path,
    before: Manifest,
    resolved: ResolvedSuite,
    checkpoints: Sequence[LocalCheckpoint],
    load: Callable[..., LoadedDocuments],
) -> _Growth:
    """Read the documents of a run, and load those that a suite adds.

    Args:
        run, before: the run, and its manifest.
        resolved: what it is to have.
        checkpoints: of this call.
        load: takes suite and checkpoints, as `load_documents`.

    Raises:
        RunFolderError: the data no longer has the documents of the run.
        ConfigError, DataError: as `load_documents`.
    """
    known = {benchmark.name: entry for entry, benchmark in built_suite(before).entries}
    documents = {name: read_documents(run, name) for name in known}
    added = [
        pair
        for pair in resolved.entries
        if (entry := known.get(pair[1].name)) is None
        or (entry.limit, entry.contexts) != (pair[0].limit, pair[0].contexts)
    ]
    if not added:
        return _Growth(documents=documents, left_out=before.left_out, incomplete=before.partial)
    # Token counts go on in the tokenizer that the run began with.
    first = before.checkpoints[0].tokenizer
    ordered = sorted(checkpoints, key=lambda each: each.tokenizer != first)
    loaded = load(replace(resolved, entries=tuple(added)), ordered)
    there = {*known, *(context_name(name, each) for name, entry in known.items() for each in entry.contexts)}
    for name, why in loaded.left_out.items():
        if name in there:
            raise RunFolderError(f"{run}: has {name}, which cannot grow now ({why}); choose another --out")
    for name, found in loaded.documents.items():
        ids = {document.doc_id for document in found}
        lost = [document.doc_id for document in documents.get(name, ()) if document.doc_id not in ids]
        if lost:
            raise RunFolderError(
                f"{run}: {len(lost)} documents of {name} are not in the data that it now comes from, such as "
                f"{lost[0]}; choose another --out"
            )
        documents[name] = found
    return _Growth(
        documents=documents,
        left_out=before.left_out | loaded.left_out,
        incomplete=before.partial | loaded.partial,
    )


def _make_room(
    run: Path,
    before: Manifest,
    manifest: Manifest,
    found: Mapping[str, list[Document]],
    checkpoints: Sequence[LocalCheckpoint],
) -> None:
    """Remove the requests of cells that grow, and write their documents and the manifest.

    In this order, a build that is interrupted anywhere is resumed by the next one: requests that are missing
    are built. Responses stay.
    """
    old = {(cell.benchmark, cell.protocol): cell.documents for cell in cells_of(before)}
    grown = [
        cell for cell in cells_of(manifest) if old.get((cell.benchmark, cell.protocol)) != cell.documents
    ]
    if not grown:
        return
    here = {each.tokenizer for each in checkpoints}
    for checkpoint in before.checkpoints:
        if checkpoint.tokenizer not in here:
            raise RunFolderError(
                f"{run}: {grown[0].benchmark} also needs requests for the tokenizer of {checkpoint.label}; "
                "pass that checkpoint, too, or choose another --out"
            )
    for cell in grown:
        for tokenizer in here:
            requests_path(run, tokenizer, cell).unlink(missing_ok=True)
    for name in dict.fromkeys(cell.benchmark for cell in grown):
        write_documents(documents_path(run, name), found[name])
    write_manifest(run, manifest)


def _merged(run: Path, before: Manifest, new: Manifest) -> Manifest:
    """Return the manifest together with the checkpoints that the run already has."""
    known = new.labels
    found = (*(each for each in before.checkpoints if each.weights_id not in known), *new.checkpoints)
    teachers = [each for each in found if each.role == "teacher"]
    if len(teachers) > 1:
        raise RunFolderError(f"{run}: its teacher is {teachers[0].label}, not {teachers[1].label}")
    return replace(
        new,
        created=before.created,
        engines=before.engines,
        checkpoints=tuple(sorted(found, key=lambda each: each.role != "teacher")),
        diverged=still_diverged((*before.diverged, *new.diverged), found),
    )


def _documents_hash(documents: Sequence[Document]) -> str:
    """Return one hash over the documents of a benchmark, equal for runs on the same documents."""
    return content_hash([document.doc_id for document in documents])


def _by_tokenizer(checkpoints: Sequence[LocalCheckpoint]) -> dict[str, list[LocalCheckpoint]]:
    found: dict[str, list[LocalCheckpoint]] = {}
    for checkpoint in checkpoints:
        found.setdefault(checkpoint.tokenizer, []).append(checkpoint)
    return found


def _build_for_tokenizer(
    run: Path,
    resolved: ResolvedSuite,
    checkpoints: list[LocalCheckpoint],
    cells: Sequence[Cell],
    found: Mapping[str, list[Document]],
    data_dir: Data,
    pool: WorkerPool,
    *,
    trust_remote_code: bool,
    quiet: bool,
) -> None:
    rows = sum(cell.documents for cell in cells)
    tokenizer = pool.share(checkpoints[0].text_tokenizer, rows)
    tasks = [
        _BuildTask(
            path=requests_path(run, checkpoints[0].tokenizer, cell),
            resolved=resolved,
            cell=cell,
            documents=found[cell.benchmark],
            tokenizer=tokenizer,
            max_length=shortest(checkpoints),
            data_dir=data_dir,
            trust_remote_code=trust_remote_code,
        )
        for cell in sorted(cells, key=lambda cell: -cell.documents)
    ]
    with progress(total=len(cells), what="build", unit="cell", quiet=quiet) as bar:
        for _ in pool.map(_write_cell, tasks, rows=rows):
            bar.update(1)


@dataclass(frozen=True, kw_only=True)
class _BuildTask:
    """One cell whose requests are to be built and written."""

    path: Path
    resolved: ResolvedSuite
    cell: Cell
    documents: list[Document]
    tokenizer: Shared
    max_length: int
    data_dir: Data
    trust_remote_code: bool


def _write_cell(task: _BuildTask) -> None:
    request_sets = build_cell(
        task.resolved,
        task.cell,
        task.documents,
        Encoder(task.tokenizer.get()),
        task.max_length,
        task.data_dir,
        trust_remote_code=task.trust_remote_code,
    )
    write_requests(task.path, request_sets)


def shortest(checkpoints: Sequence[LocalCheckpoint]) -> int:
    """Return the number of positions that all of these checkpoints support."""
    return min(checkpoint.positions for checkpoint in checkpoints)


def build_cell(
    resolved: ResolvedSuite,
    cell: Cell,
    documents: list[Document],
    encoder: Encoder,
    max_length: int,
    data_dir: Data,
    *,
    trust_remote_code: bool = False,
) -> list[RequestSet]:
    """Build the requests of one benchmark under one protocol for one tokenizer.

    `documents` holds all documents of the benchmark; requests are built for those of the cell.
    """
    documents = cell_documents(documents, cell, resolved.suite.seed)
    entry, benchmark = next(pair for pair in resolved.entries if pair[1].name == cell.benchmark)
    num_fewshot = {str(protocol): count for protocol, count in entry.num_fewshot.items()}[cell.protocol]
    examples = fewshot_examples(benchmark, num_fewshot, data_dir)
    harness = make_harness(
        benchmark,
        cell.protocol,
        documents,
        num_fewshot,
        examples,
        resolved.suite.seed,
        trust_remote_code=trust_remote_code,
    )
    if isinstance(harness, LogLikelihoodBenchmark):
        return harness.request_sets(encoder, max_length)
    sampling = cell.sampling_params
    return harness.request_sets(
        encoder,
        chat_template=resolved.chat_template,
        max_length=max_length,
        closes_thoughts=sampling is not None and sampling.thinking_budget is not None,
    )


def fewshot_examples(benchmark: Benchmark, num_fewshot: int, data_dir: Data) -> list[Document]:
    """Return the documents for few-shot examples; none for EvalScope benchmarks that bring their own."""
    if not num_fewshot or not benchmark.has_fewshot_split:
        return []
    return fewshot_documents(benchmark, data_dir=data_dir)


def make_harness(
    benchmark: Benchmark,
    protocol: str,
    documents: Sequence[Document],
    num_fewshot: int = 0,
    examples: Sequence[Document] = (),
    seed: int = 0,
    *,
    trust_remote_code: bool = False,
) -> Harness:
    """Return the harness adapter of one benchmark under one protocol.

    Raises:
        ConfigError: it executes code or reads a task file that the user has not allowed.
    """
    if protocol == "loglikelihood":
        return LogLikelihoodBenchmark(
            benchmark,
            documents,
            num_fewshot=num_fewshot,
            examples=examples,
            seed=seed,
            trust_remote_code=trust_remote_code,
        )
    return GenerationBenchmark(benchmark, documents, num_fewshot=num_fewshot, examples=examples)


def load_harness(run: Path, manifest: Manifest, cell: Cell, *, trust_remote_code: bool = False) -> Harness:
    """Return the harness adapter of one cell for scoring, from the run folder alone.

    Scoring uses no few-shot examples, so neither their data nor the network is needed.
    """
    documents = cell_documents(read_documents(run, cell.benchmark), cell, manifest.config["seed"])
    benchmark = benchmarks_in(manifest)[cell.benchmark]
    return make_harness(benchmark, cell.protocol, documents, trust_remote_code=trust_remote_code)
