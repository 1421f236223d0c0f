"""Jobs of the infer phase: a checkpoint, or for many workers parts of its benchmarks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from evalsuite.evaluation.inference.worker import EngineChoice, InferenceTask, token_cost
from evalsuite.evaluation.processes.repeated import Repeated
from evalsuite.evaluation.run_paths import Cell, batches_of_cells, read_requests
from evalsuite.models.engines import engine_type
from evalsuite.models.inference.requests import Request
from evalsuite.models.inference.response_cache import Key, ResponseCache
from evalsuite.reports.run import Checkpoint, Manifest, manifest_path, read_manifest

SMALLEST_PART = 1 / 16
"""Smallest part of a checkpoint's requests, as a share of what one worker has to do."""


class Part(NamedTuple):
    """Some documents of a cell, from `start` to before `stop`."""

    cell: Cell
    start: int
    stop: int


Document = list[tuple[Key, Request]]
"""The requests of one document, with their keys."""
Read = tuple[str, int | None]
"""A tokenizer, and the longest context that is read; None: no limit."""


class RequestReader:
    """Reads the requests of a run, once for checkpoints of one tokenizer and limit that follow each other.

    They stay in memory until others are read, and go to a worker once for jobs with the same parts.

    Args:
        run, manifest: of the run folder.
    """

    def __init__(self, run: Path, manifest: Manifest) -> None:
        self.run, self.manifest = run, manifest
        self._read: Read | None = None
        self._cells: dict[tuple[str, str], list[Document]] = {}
        self._batches: tuple[tuple[Any, ...], Repeated[list[dict[Key, Request]]]] | None = None

    def read_by(self, checkpoint: Checkpoint) -> Read:
        """Return what decides which requests a checkpoint reads."""
        return checkpoint.tokenizer, self.manifest.limit(checkpoint).longest

    def documents(self, checkpoint: Checkpoint, cell: Cell) -> list[Document]:
        """Return the documents of a cell that a checkpoint reads."""
        limit = self.manifest.limit(checkpoint)
        if (read := self.read_by(checkpoint)) != self._read:
            self._read = read
            self._cells.clear()
        name = cell.benchmark, cell.protocol
        if name not in self._cells:
            self._cells[name] = [
                [(request.key(), request) for request in cell.requests(request_set)]
                for request_set in read_requests(self.run, checkpoint.tokenizer, cell)
                if limit.reads(request_set.context)
            ]
        return self._cells[name]

    def batches(
        self, checkpoint: Checkpoint, batches: Sequence[Sequence[Part]]
    ) -> Repeated[list[dict[Key, Request]]]:
        """Return the requests of each batch of parts; equal ones are one."""
        same = self.read_by(checkpoint), batches
        if self._batches is None or self._batches[0] != same:
            found = [
                dict(
                    pair
                    for part in batch
                    for document in self.documents(checkpoint, part.cell)[part.start : part.stop]
                    for pair in document
                )
                for batch in batches
            ]
            self._batches = same, Repeated(found)
        return self._batches[1]


@dataclass(frozen=True, kw_only=True)
class InferenceJob:
    """Inference of one checkpoint, or of a part of its requests, as `evalsuite.executors.Job`."""

    reader: RequestReader = field(repr=False)
    cache: ResponseCache = field(repr=False)
    checkpoint: Checkpoint
    choice: EngineChoice
    batches: tuple[tuple[Part, ...], ...]
    cost: float = 0.0
    """Prefilled tokens."""
    shared: Path | None = None
    """Folder of the responses that runs share."""

    def __str__(self) -> str:
        return f"infer {self.checkpoint.label}"

    @property
    def group(self) -> str:
        """Jobs of one checkpoint share its weights."""
        return self.checkpoint.weights_id

    @property
    def gpus(self) -> int | None:
        """None if the device is found out where it runs."""
        if self.choice.device == "cpu":
            return 0
        needed = engine_type(self.choice.engine, self.choice.engine_args).gpus(self.choice.engine_args)
        return needed if self.choice.device != "auto" or needed > 1 else None

    def prepare(self) -> InferenceTask:
        """Return requests and known responses."""
        run, batches = self.reader.run, self.reader.batches(self.checkpoint, self.batches)
        # Recorded by the first job of the checkpoint.
        engine = read_manifest(run).engines.get(self.checkpoint.weights_id)
        keys = [key for batch in batches.value for key in batch]
        return InferenceTask(
            checkpoint=self.checkpoint,
            choice=self.choice,
            batches=batches,
            known={} if engine is None else self.cache.known(engine.fingerprint, keys),
            batch_limits=None if engine is None else engine.batch_limits,
            batch_limits_source=f"{manifest_path(run)}: engines.{self.checkpoint.weights_id}.batch_limits",
            shared=None if self.shared is None else str(self.shared),
        )


def whole_jobs(
    run: Path,
    manifest: Manifest,
    cache: ResponseCache,
    checkpoints: Sequence[Checkpoint],
    choice: EngineChoice,
    protocols: Sequence[str],
    batches: Sequence[Sequence[str]],
    shared: Path | None = None,
) -> list[InferenceJob]:
    """Return one job per checkpoint.

    Args:
        run, manifest, cache: of the run folder.
        checkpoints: to run.
        choice: the engine.
        protocols: run only these; empty: all.
        batches: run only these benchmarks, batch by batch; empty: all at once.
        shared: folder of the responses that runs share.

    Raises:
        ConfigError: a benchmark that is not in the run, or is listed twice.
    """
    cells = [
        [cell for cell in batch if not protocols or cell.protocol in protocols]
        for batch in batches_of_cells(manifest, batches)
    ]
    reader = RequestReader(run, manifest)
    known: dict[Read, tuple[tuple[tuple[Part, ...], ...], float]] = {}
    jobs = []
    for checkpoint in checkpoints:
        same = reader.read_by(checkpoint)
        if same not in known:
            found = [[(cell, reader.documents(checkpoint, cell)) for cell in batch] for batch in cells]
            known[same] = (
                tuple(tuple(Part(cell, 0, len(documents)) for cell, documents in batch) for batch in found),
                float(
                    sum(
                        token_cost(request)
                        for batch in found
                        for _, documents in batch
                        for document in documents
                        for _, request in document
                    )
                ),
            )
        parts, cost = known[same]
        jobs.append(
            InferenceJob(
                reader=reader,
                cache=cache,
                checkpoint=checkpoint,
                choice=replace(choice, max_length=manifest.limit(checkpoint).extension),
                batches=parts,
                cost=cost,
                shared=shared,
            )
        )
    return jobs


def split(jobs: Sequence[InferenceJob], workers: int) -> list[InferenceJob]:
    """Return smaller jobs for several workers: whole checkpoints, and ever smaller parts of the last ones.

    A job costs no more than an even share of what is left (guided self-scheduling, Polychronopoulos and Kuck,
    IEEE Transactions on Computers C-36(12), 1987), so that the last worker ends soon after the others.
    Checkpoints stay whole where they can: every part has batches of other shapes, for which a GPU has to be
    prepared again.
    """
    left = sum(job.cost for job in jobs)
    least = SMALLEST_PART * left / workers
    known: dict[Read, list[tuple[Cell, list[int]]]] = {}
    found = []
    for job in jobs:
        same = job.reader.read_by(job.checkpoint)
        if same not in known:
            known[same] = _document_costs(job)
        for parts, cost in _portions(known[same], left, workers, least):
            found.append(replace(job, batches=(tuple(parts),), cost=float(cost)))
        left -= job.cost
    return found


def _document_costs(job: InferenceJob) -> list[tuple[Cell, list[int]]]:
    """Return the cost of every document of each cell."""
    return [
        (
            cell,
            [
                sum(token_cost(request) for _, request in document)
                for document in job.reader.documents(job.checkpoint, cell)
            ],
        )
        for batch in job.batches
        for cell, _, _ in batch
    ]


def _portions(
    documents: Sequence[tuple[Cell, Sequence[int]]], left: float, workers: int, least: float
) -> Iterator[tuple[list[Part], int]]:
    """Yield (parts, cost) of one checkpoint.

    Args:
        documents: cost of every document of each cell.
        left: cost of this checkpoint and all after it.
        workers: they share what is left.
        least: cost of the smallest portion, unless the checkpoint costs less.
    """
    rest = sum(sum(costs) for _, costs in documents)
    parts: list[Part] = []
    cost = 0
    for cell, costs in documents:
        start = 0
        for stop, each in enumerate(costs, 1):
            cost += each
            if cost >= max(least, left / workers) and rest - cost >= least:
                yield [*parts, Part(cell, start, stop)], cost
                left, rest = left - cost, rest - cost
                parts, cost, start = [], 0, stop
        if start < len(costs):
            parts.append(Part(cell, start, len(costs)))
    if parts:
        yield parts, cost
