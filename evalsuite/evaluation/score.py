"""Score phase: harness metrics turn responses into score rows. Needs only the run folder."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from evalsuite.evaluation.build import Harness, load_harness
from evalsuite.evaluation.environment import fingerprints, read_environment
from evalsuite.evaluation.plan import benchmarks_in
from evalsuite.evaluation.run_paths import Cell, CheckpointRef, Index, read_requests, responses_folder
from evalsuite.foundation import RunFolderError, progress
from evalsuite.models.inference.requests import GenerateResponse
from evalsuite.models.inference.response_cache import Key, ResponseCache
from evalsuite.protocols.compat_evalscope import cached_formula_parsing
from evalsuite.protocols.loglikelihood import LogLikelihoodBenchmark
from evalsuite.protocols.request_set import RequestSet, Score
from evalsuite.reports.records.reading import scored_keys
from evalsuite.reports.records.schema import ScoreRow, append_score_rows, scores_path
from evalsuite.tasks.sources.assets import ensure_asset

FLUSH_SECONDS = 2.0
"""Interval between writes; rows lost to a kill are scored again."""
MIN_PARALLEL_ROWS = 20_000
"""Rows from which worker processes pay off: each of them imports both harnesses."""
MAX_WORKERS = 8
TOKENS_PER_UNIT = 16
"""Generated tokens whose scoring takes about as long as one log-likelihood row."""
MIN_SPLIT_ROWS = 1_000
"""Generation rows from which the workers share a cell."""


def score(run: Path, index: Index, *, workers: int | None = 1, quiet: bool = False) -> int:
    """Score every response without a score row.

    Args:
        run, index: the run folder and its requests.
        workers: processes that share the cells; None takes one per processor if there is enough work.
            More than one import the main module again, as multiprocessing does.
        quiet: no progress bar.

    Returns:
        The number of missing responses; 0 for a complete run.

    Raises:
        DataError: invalid responses, documents or score rows.
        MissingDependencyError: an asset that a metric reads is missing.
        RunFolderError: rows cannot be written, or a worker was killed; no row is ever half-written.
    """
    run = Path(run)
    expected = [cell.documents * len(cell.seeds) * len(index.checkpoints) for cell in index.cells]
    present = [_count_lines(scores_path(run, cell.benchmark, cell.protocol)) for cell in index.cells]
    left = [max(0, count - there) for count, there in zip(expected, present, strict=True)]
    if workers is None:
        workers = min(MAX_WORKERS, _processors()) if sum(left) >= MIN_PARALLEL_ROWS else 1
    with progress(total=sum(expected), what="score", unit="doc", quiet=quiet) as bar:
        if workers < 2:
            scorer = _RunScorer(run, index)
            return sum(scorer.score_cell(cell, index.checkpoints, bar.update) for cell in index.cells)
        tasks = [
            (_weight(cell) * count // shares, cell, number, shares)
            for cell, count in zip(index.cells, left, strict=True)
            for shares in [workers if cell.sampling_params is not None and count >= MIN_SPLIT_ROWS else 1]
            for number in range(shares)
        ]
        # Longest first, for an even finish.
        tasks.sort(key=lambda task: -task[0])
        missing = 0
        # Forking a process with data sets loaded, and their threads, may deadlock.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, context, initializer=_start_worker, initargs=(run, index)) as pool:
            try:
                for future in as_completed([pool.submit(_score_share, *task[1:]) for task in tasks]):
                    scored, lacking = future.result()
                    missing += lacking
                    bar.update(scored)
            except BrokenProcessPool as error:
                raise RunFolderError(
                    f"{run}: a scoring process was killed, perhaps out of memory; repeat the command to "
                    "resume"
                ) from error
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return missing


def _weight(cell: Cell) -> int:
    sampling = cell.sampling_params
    return 1 if sampling is None else 1 + sampling.max_new_tokens // TOKENS_PER_UNIT


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _count_lines(path: Path) -> int:
    if not path.is_file():
        return 0
    with open(path, "rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 24), b""))


_worker_scorer: "_RunScorer | None" = None
"""Scorer of a worker process."""


def _start_worker(run: Path, index: Index) -> None:
    global _worker_scorer
    # The parent handles interruptions: it cancels the tasks that have not started.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _worker_scorer = _RunScorer(run, index)


def _score_share(cell: Cell, number: int, shares: int) -> tuple[int, int]:
    """Score one share of a cell's checkpoints; return the number of scored and of missing responses."""
    assert _worker_scorer is not None
    counts: list[int] = []
    checkpoints = _worker_scorer.index.checkpoints[number::shares]
    missing = _worker_scorer.score_cell(cell, checkpoints, counts.append)
    return sum(counts), missing


class _RunScorer:
    """Scores the cells of one run; responses are read once for all of them."""

    def __init__(self, run: Path, index: Index) -> None:
        self.run, self.index = run, index
        self.cache = ResponseCache(responses_folder(run))
        self.fingerprints = fingerprints(run)
        self.benchmarks, self.data = benchmarks_in(index), read_environment(run).get("data")

    def score_cell(
        self, cell: Cell, checkpoints: Sequence[CheckpointRef], advance: Callable[[int], object]
    ) -> int:
        """Write the missing score rows of one cell, and return the number of missing responses."""
        samples = list(_samples(self.run, checkpoints, cell, self.cache, self.fingerprints))
        done = scored_keys(self.run, cell.benchmark, cell.protocol) if samples else set()
        pending = [sample for sample in samples if sample.key not in done]
        advance(len(samples) - len(pending))
        missing = cell.documents * len(cell.seeds) * len(checkpoints) - len(samples)
        if not pending:
            return missing
        for asset in self.benchmarks[cell.benchmark].assets:
            ensure_asset(asset, self.data)
        harness = load_harness(self.run, self.index, cell)
        batch: list[ScoreRow] = []
        flushed = time.monotonic()
        with cached_formula_parsing() if cell.sampling_params is not None else nullcontext():
            for number, sample in enumerate(pending, 1):
                batch.append(sample.record(harness))
                if number == len(pending) or time.monotonic() - flushed > FLUSH_SECONDS:
                    append_score_rows(self.run, batch)
                    advance(len(batch))
                    batch, flushed = [], time.monotonic()
        return missing


class _Sample:
    """One document with the responses of one checkpoint under one seed."""

    def __init__(
        self,
        checkpoint: CheckpointRef,
        fingerprint: str,
        cell: Cell,
        number: int,
        request_set: RequestSet,
        seed: int,
    ) -> None:
        sampling = cell.sampling_params
        self.checkpoint = checkpoint
        self.number = number
        self.request_set = request_set
        self.responses: list[Any] = []
        self.identity: Mapping[str, Any] = {
            "weights_id": checkpoint.weights_id,
            "fingerprint": fingerprint,
            "benchmark": cell.benchmark,
            "protocol": cell.protocol,
            "seed": seed,
            "context": request_set.context,
            "doc_id": request_set.doc_id,
            "prompt_hash": request_set.prompt_hash,
            "sampling": sampling.key() if sampling is not None else "",
        }

    @property
    def key(self) -> tuple[str | int | None, ...]:
        """The key of the score row."""
        return tuple(self.identity.values())

    def record(self, harness: Harness) -> ScoreRow:
        """Score the responses."""
        found = self._score(harness)
        return ScoreRow(
            **self.identity,
            checkpoint=self.checkpoint.label,
            values=found.values,
            chance=found.chance,
            outcome=found.outcome,
            detail=found.detail,
        )

    def _score(self, harness: Harness) -> Score:
        if isinstance(harness, LogLikelihoodBenchmark):
            return harness.score(self.number, self.request_set, self.responses)
        (response,) = self.responses
        assert isinstance(response, GenerateResponse)
        return harness.score(self.number, response)


def _keys(cell: Cell, request_set: RequestSet) -> list[list[Key]]:
    """Return, per seed, the keys of the requests whose responses are scored together."""
    keys = [request.key() for request in cell.requests(request_set)]
    return [keys] if cell.sampling_params is None else [[key] for key in keys]


def _samples(
    run: Path,
    checkpoints: Sequence[CheckpointRef],
    cell: Cell,
    cache: ResponseCache,
    fingerprints: Mapping[str, str],
) -> Iterator[_Sample]:
    """Yield every document of a cell whose responses are complete, checkpoint by checkpoint."""
    known: dict[str, list[tuple[RequestSet, list[list[Key]]]]] = {}
    for checkpoint in checkpoints:
        fingerprint = fingerprints.get(checkpoint.weights_id)
        if fingerprint is None:
            continue
        if checkpoint.tokenizer not in known:
            # Hashing a request takes longer than the lookup of its response: once for all checkpoints.
            known[checkpoint.tokenizer] = [
                (request_set, _keys(cell, request_set))
                for request_set in read_requests(run, checkpoint.tokenizer, cell)
            ]
        for number, (request_set, groups) in enumerate(known[checkpoint.tokenizer]):
            for seed, group in zip(cell.seeds, groups, strict=True):
                sample = _Sample(checkpoint, fingerprint, cell, number, request_set, seed)
                sample.responses = [cache.get_by_key(fingerprint, key) for key in group]
                if all(response is not None for response in sample.responses):
                    yield sample
