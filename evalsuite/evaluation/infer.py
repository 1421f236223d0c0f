"""Infer phase: an engine responds to the requests of every checkpoint; cached responses are reused.

This module needs the run folder, the checkpoints and `evalsuite.models`, but no harness and no pydantic.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from evalsuite.config import RunConfig
from evalsuite.evaluation.environment import record_engine, record_inference, record_kernels
from evalsuite.evaluation.run_paths import (
    Cell,
    CheckpointRef,
    Index,
    read_index,
    read_requests,
    responses_folder,
)
from evalsuite.executors import Executor, Progress
from evalsuite.foundation import CheckpointError, ConfigError, nearest, progress
from evalsuite.foundation.context_limits import ContextLimit
from evalsuite.models.inference.base import Engine, score_remaining
from evalsuite.models.inference.registry import EngineSettings, engine_type
from evalsuite.models.inference.requests import GenerateRequest, Request, Response, ScoreRequest
from evalsuite.models.inference.response_cache import ResponseCache, run_requests

DECODE_COST = 4
"""Cost of a decoded token in prefilled tokens; only the progress bar's remaining time uses it."""


@dataclass(slots=True)
class InferenceStats:
    """Counts of one checkpoint's responses."""

    computed: int = 0
    """Responses computed by this call; the others were cached."""
    seconds: float = 0.0
    """Wall time of this call, with loading the checkpoint."""
    failed: int = 0
    """Responses that are errors, cached ones included."""
    reason: str = ""
    """Reason of the first error."""

    def count_errors(self, responses: Sequence[Response]) -> None:
        """Add the errors among these responses."""
        reasons = [each.error for each in responses if each.error]
        self.failed += len(reasons)
        self.reason = self.reason or next(iter(reasons), "")


class EngineFactory(Protocol):
    """Loads a checkpoint and returns its engine."""

    def __call__(self, path: str, label: str | None) -> Engine:
        """Raises CheckpointError for a checkpoint that cannot be loaded."""


def engine_factory(
    engine: str,
    *,
    device: str,
    dtype: str,
    trust_remote_code: bool,
    arguments: Mapping[str, Any] | None = None,
    max_length: int | None = None,
) -> EngineFactory:
    """Return the factory of an engine; `max_length` as in `EngineSettings`.

    Raises:
        ConfigError: an unknown engine, or arguments or a `max_length` for an engine that takes none.
        MissingDependencyError: raised by the factory if the engine needs a package that is not installed.
    """
    kind = engine_type(engine, arguments or {}, max_length)

    def make(path: str, label: str | None) -> Engine:
        resolved_device, resolved_dtype = resolve_device(device, dtype)
        settings = EngineSettings(
            device=resolved_device,
            dtype=resolved_dtype,
            label=label,
            trust_remote_code=trust_remote_code,
            max_length=max_length,
            arguments=arguments or {},
        )
        return kind.open(path, settings)

    return make


def check_device(engine: str, device: str) -> None:
    """Raise ConfigError for a device that is given to an engine that chooses its devices itself."""
    if device != "auto" and engine_type(engine, {}).chooses_devices:
        raise ConfigError(
            f"'device' (--device) = {device} has no effect on engine {engine}, which chooses among the "
            "visible devices; leave it out, and set CUDA_VISIBLE_DEVICES instead"
        )


def check_servable(config: RunConfig, paths: Sequence[str]) -> None:
    """Refuse an unknown engine, invalid settings, and checkpoints that it cannot serve, before any work.

    Engines that load a checkpoint as they open it are opened later, one at a time.
    """
    make = engine_factory(
        config.engine,
        device=config.device,
        dtype=config.dtype,
        trust_remote_code=config.trust_remote_code,
        arguments=config.engine_args,
        max_length=config.max_length,
    )
    check_device(config.engine, config.device)
    if engine_type(config.engine, config.engine_args).opens_unloaded:
        for path in paths:
            make(path, "")


def resolve_device(device: str, dtype: str) -> tuple[str, str]:
    """Resolve `auto`: a GPU if available; float32 on a CPU, where bfloat16 is slow, else bfloat16."""
    import torch

    resolved = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    return resolved, ("float32" if resolved == "cpu" else "bfloat16") if dtype == "auto" else dtype


def select_checkpoints(
    index: Index, paths: Sequence[str], *, trust_remote_code: bool = False
) -> list[CheckpointRef]:
    """Return the checkpoints of a run at `paths`.

    Paths may differ between machines; checkpoints are identified by their weights.

    Raises:
        ConfigError: a checkpoint without requests in this run.
    """
    by_path = {ref.path: ref for ref in index.checkpoints}
    by_weights = {ref.weights_id: ref for ref in index.checkpoints}
    found = {}
    for path in paths:
        ref = by_path.get(path)
        if ref is None:
            from evalsuite.models.checkpoints import describe_checkpoint

            weights_id = describe_checkpoint(path, trust_remote_code=trust_remote_code).weights_id
            if weights_id not in by_weights:
                raise ConfigError(f"{path}: not a checkpoint of this run; build its requests first")
            ref = replace(by_weights[weights_id], path=path)
        found[ref.weights_id] = ref
    return list(found.values())


@dataclass(frozen=True, kw_only=True)
class InferenceJob:
    """Inference of one checkpoint of a run; plain values, so that an executor can send it elsewhere."""

    run: Path
    checkpoint: CheckpointRef
    engine: str
    engine_args: Mapping[str, Any]
    device: str
    dtype: str
    trust_remote_code: bool
    protocols: tuple[str, ...] = ()
    """Run only these; empty: all."""
    batches: tuple[tuple[str, ...], ...] = ()
    """Run only these benchmarks, batch by batch, so that an interruption leaves few benchmarks incomplete;
    empty: all at once."""

    def __str__(self) -> str:
        return f"infer {self.checkpoint.label}"

    def make_engine(self, index: Index) -> Engine:
        """Load the checkpoint."""
        make = engine_factory(
            self.engine,
            device=self.device,
            dtype=self.dtype,
            trust_remote_code=self.trust_remote_code,
            arguments=self.engine_args,
            max_length=index.limit(self.checkpoint).extension,
        )
        return make(self.checkpoint.path, self.checkpoint.label)

    def requests(self, index: Index) -> list[list[Request]]:
        """Read the requests of each batch. Raises ConfigError for a benchmark that is not in the run."""
        limit = index.limit(self.checkpoint)
        return [
            _requests(self.run, cells, self.checkpoint.tokenizer, limit)
            for cells in _cell_batches(index, self.protocols, self.batches)
        ]


def infer(
    index: Index,
    jobs: Sequence[InferenceJob],
    executor: Executor,
    *,
    quiet: bool = False,
    on_checkpoint: Callable[[str, InferenceStats], None] = lambda label, stats: None,
) -> dict[str, InferenceStats]:
    """Run inference; a response is on disk before it is counted.

    Args:
        index: of the run.
        jobs: its checkpoints.
        executor: carries out the jobs.
        quiet: no progress bar.
        on_checkpoint: called with its label and counts when the responses of a checkpoint are complete.

    Returns:
        Label → counts of responses.

    Raises:
        CheckpointError: a checkpoint whose weights differ from those in the index.
        ConfigError: a benchmark that is not in the run, or is in two batches.
        RunFolderError: the folder holds responses of another engine, dtype or version, or cannot be written.
    """
    costs: dict[tuple[str, int | None], int] = {}
    for job in jobs:
        if _same_requests(job, index) not in costs:
            costs[_same_requests(job, index)] = sum(
                token_cost(one) for part in job.requests(index) for one in part
            )
    total = sum(costs[_same_requests(job, index)] for job in jobs)
    with progress(total=total, what="infer", unit="tok", quiet=quiet) as bar:
        done = {}
        for job, stats in zip(jobs, executor.map(run_inference, jobs, bar), strict=True):
            done[job.checkpoint.label] = stats
            on_checkpoint(job.checkpoint.label, stats)
    return done


def run_inference(job: InferenceJob, bar: Progress) -> InferenceStats:
    """Compute the missing responses of one job. Raises as `infer`."""
    ref, started, stats = job.checkpoint, time.monotonic(), InferenceStats()
    index = read_index(job.run)
    requests = job.requests(index)
    cache = ResponseCache(responses_folder(job.run))
    engine = job.make_engine(index)
    _check_weights(engine, ref)
    record_engine(job.run, ref.weights_id, engine)
    counting = _CountingEngine(engine, bar)
    try:
        for part in requests:
            before = counting.cost
            stats.count_errors(run_requests(counting, cache, part, quiet=True))
            # Cached responses cost nothing, but count as progress.
            bar.update(sum(map(token_cost, part)) - (counting.cost - before))
    finally:
        record_kernels(job.run)
        if counting.computed:
            spent = time.monotonic() - started
            record_inference(job.run, ref.label, counting.computed, spent, job.protocols)
        # vLLM holds its memory until it exits, and the next instance measures what is free.
        engine.close()
    stats.computed, stats.seconds = counting.computed, time.monotonic() - started
    return stats


def _same_requests(job: InferenceJob, index: Index) -> tuple[str, int | None]:
    """Return what the requests of a job follow from."""
    return job.checkpoint.tokenizer, index.limit(job.checkpoint).longest


def _cell_batches(
    index: Index, protocols: Sequence[str], batches: Sequence[Sequence[str]]
) -> list[list[Cell]]:
    """Return the cells of each batch."""
    cells = [cell for cell in index.cells if not protocols or cell.protocol in protocols]
    if not batches:
        return [cells]
    known = list(dict.fromkeys(cell.benchmark for cell in index.cells))
    seen: set[str] = set()
    for name in (name for batch in batches for name in batch):
        if name not in known:
            raise ConfigError(f"benchmark '{name}' is not in this run{nearest(name, known)}")
        if name in seen:
            raise ConfigError(f"benchmark '{name}' is listed twice")
        seen.add(name)
    return [[cell for cell in cells if cell.benchmark in batch] for batch in batches]


def _requests(run: Path, cells: Sequence[Cell], tokenizer: str, limit: ContextLimit) -> list[Request]:
    return [
        request
        for cell in cells
        for request_set in read_requests(run, tokenizer, cell)
        if limit.reads(request_set.context)
        for request in cell.requests(request_set)
    ]


def token_cost(request: Request) -> int:
    """Return the relative cost of a request, in prefilled tokens."""
    if isinstance(request, ScoreRequest):
        return len(request.context) + sum(map(len, request.continuations))
    return len(request.prompt) + DECODE_COST * request.sampling.max_new_tokens


def _check_weights(engine: Engine, ref: CheckpointRef) -> None:
    if engine.weights_id != ref.weights_id:
        raise CheckpointError(
            f"{ref.path}: weights are {engine.weights_id}, but the requests of {ref.label} were built for "
            f"{ref.weights_id}; the checkpoint has changed, or is another one"
        )


class _CountingEngine:
    """An engine that updates a progress bar and counts its responses."""

    def __init__(self, engine: Engine, bar: Progress) -> None:
        self._engine = engine
        self._bar = bar
        self.name = engine.name
        self.weights_id = engine.weights_id
        self.versions = engine.versions
        self.fingerprint = engine.fingerprint
        self.max_length = engine.max_length
        self.notice = engine.notice
        self.computed = 0
        self.cost = 0
        """Token cost of the computed responses."""

    def score(self, requests: Sequence[ScoreRequest]) -> Iterator[tuple[int, Any]]:
        return self._counted(requests, self._engine.score(requests))

    def score_remaining(
        self, requests: Sequence[ScoreRequest], known: Collection[int]
    ) -> Iterator[tuple[int, Any]]:
        return self._counted(requests, score_remaining(self._engine, requests, known))

    def generate(self, requests: Sequence[GenerateRequest]) -> Iterator[tuple[int, Any]]:
        return self._counted(requests, self._engine.generate(requests))

    def close(self) -> None:
        self._engine.close()

    def _counted(
        self, requests: Sequence[Request], responses: Iterator[tuple[int, Any]]
    ) -> Iterator[tuple[int, Any]]:
        for number, response in responses:
            self.computed += 1
            cost = token_cost(requests[number])
            self.cost += cost
            self._bar.update(cost)
            yield number, response
