"""`infer`: hands jobs to an executor, and alone writes what its workers send into the run folder."""

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from evalsuite.evaluation.environment import record_engine, update_environment
from evalsuite.evaluation.inference.jobs import InferenceJob, split, whole_jobs
from evalsuite.evaluation.inference.worker import EngineChoice, InferenceWorker, PreloadedEngine
from evalsuite.evaluation.run_paths import open_responses
from evalsuite.executors import Executor
from evalsuite.foundation import ConfigError, RunFolderError, progress
from evalsuite.models.inference.requests import Response
from evalsuite.models.inference.response_cache import Key, ResponseCache, response_from_dict
from evalsuite.models.inference.shared_responses import SharedResponses
from evalsuite.reports.run import Checkpoint, Manifest, read_environment


@dataclass(slots=True)
class InferenceStats:
    """Counts of one checkpoint's responses."""

    computed: int = 0
    """Responses computed by this call; the others were cached."""
    shared: int = 0
    """Responses that another run has computed."""
    failed: int = 0
    """Responses that are errors, cached ones included."""
    reason: str = ""
    """Reason of the first error."""
    seconds: float = 0.0
    """Time of all workers, loading included."""


def infer(
    run: Path,
    manifest: Manifest,
    checkpoints: Sequence[Checkpoint],
    choice: EngineChoice,
    executor: Executor,
    *,
    protocols: Sequence[str] = (),
    batches: Sequence[Sequence[str]] = (),
    shared: Path | None = None,
    quiet: bool = False,
    on_checkpoint: Callable[[str, InferenceStats], None] = lambda label, stats: None,
    preloaded: PreloadedEngine | None = None,
) -> dict[str, InferenceStats]:
    """Run inference; a response is on disk before it is counted.

    Args:
        run: the run folder.
        manifest: of the run.
        checkpoints: to run.
        choice: the engine.
        executor: carries out the jobs; with several workers a checkpoint becomes several jobs.
        protocols: run only these; empty: all.
        batches: run only these benchmarks, batch by batch; empty: all at once.
        shared: folder of the responses that runs share, which are used and added to.
        quiet: no progress bar.
        on_checkpoint: called with its label and counts when the responses of a checkpoint are complete.
        preloaded: engine of the first checkpoint, for an executor that runs jobs in this process.

    Returns:
        Label → counts of responses.

    Raises:
        CheckpointError: a checkpoint whose weights differ from those in the manifest.
        ConfigError: a benchmark that is not in the run, or is in two batches; too few GPUs.
        RunFolderError: the folder holds responses of another engine, dtype or version, or cannot be written.
    """
    cache = open_responses(run, manifest)
    jobs = whole_jobs(run, manifest, cache, checkpoints, choice, protocols, batches, shared)
    if not jobs:
        return {}
    make_worker = InferenceWorker if preloaded is None else partial(InferenceWorker, preloaded)
    workers = executor.workers(jobs[0].gpus)
    if workers > 1:
        if ":" in choice.device:
            raise ConfigError(
                f"'device' (--device) = {choice.device} names one GPU, and each of {workers} workers sees "
                "its own as cuda; leave it out"
            )
        jobs = split(jobs, workers)
    with progress(total=int(sum(job.cost for job in jobs)), what="infer", unit="tok", quiet=quiet) as bar:
        collector = _Collector(run, cache, bar, protocols, shared)
        waiting = Counter(job.checkpoint.label for job in jobs)
        try:
            for number, result in executor.map(make_worker, jobs, collector, run / "executor"):
                label = jobs[number].checkpoint.label
                collector.finish(jobs[number], result)
                waiting[label] -= 1
                if not waiting[label]:
                    on_checkpoint(label, collector.stats(label))
        finally:
            collector.record_time()
    return {each.label: collector.stats(each.label) for each in checkpoints}


class _Collector:
    """The channel of the workers' messages; see `InferenceWorker`."""

    def __init__(
        self, run: Path, cache: ResponseCache, bar: Any, protocols: Sequence[str], shared: Path | None
    ) -> None:
        self._run, self._cache, self._bar = run, cache, bar
        self._shared = None if shared is None else SharedResponses(shared)
        self._protocols = list(protocols)
        self._received: set[tuple[str, Key]] = set()
        self._stats: dict[str, InferenceStats] = {}
        self._costs: dict[str, list[float]] = {}
        """Label → cost of received responses, cost of jobs that have ended."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Write a message into the run folder."""
        if "engine" in message:
            record_engine(self._run, message["engine"])
        elif "responses" in message:
            self._store(message)
        else:
            spent = message["spent"]
            self.stats(spent["label"]).seconds += spent["seconds"]
            if message.get("kernels"):
                known = read_environment(self._run).get("kernels", {})
                kernels = known | message["kernels"]
                update_environment(self._run, kernels=kernels, backend=message["backend"])

    def set_description(self, desc: str) -> None:
        """Show what runs now."""
        self._bar.set_description(desc)

    def stats(self, label: str) -> InferenceStats:
        """Counts of a checkpoint so far."""
        return self._stats.setdefault(label, InferenceStats())

    def finish(self, job: InferenceJob, result: Mapping[str, Any]) -> None:
        """Count a job that has ended."""
        label = job.checkpoint.label
        stats = self.stats(label)
        stats.failed += result["failed"]
        stats.reason = stats.reason or result["reason"]
        # Known responses cost nothing, but count as progress.
        costs = self._costs.setdefault(label, [0.0, 0.0])
        costs[1] += job.cost
        self._advance(label, max(0.0, costs[1] - costs[0]))

    def record_time(self) -> None:
        """Record the wall time of inference of each checkpoint, loading included, over all workers."""
        spent = [
            {
                "label": label,
                "responses": stats.computed,
                "seconds": round(stats.seconds, 1),
                "protocols": self._protocols,
            }
            for label, stats in self._stats.items()
            if stats.computed
        ]
        if spent:
            before = read_environment(self._run).get("inference", [])
            update_environment(self._run, inference=[*before, *spent])

    def _store(self, message: Mapping[str, Any]) -> None:
        """Append responses that are new; those of a job that was repeated may come twice."""
        fingerprint = message["fingerprint"]
        new = []
        for verb, hashed, sampling, seed, value in message["responses"]:
            key = (verb, hashed, sampling, seed)
            response = response_from_dict(verb, value)
            if (fingerprint, key) in self._received or self._cache.get_by_key(fingerprint, key) == response:
                continue
            self._received.add((fingerprint, key))
            new.append((key, response))
        self._cache.add(fingerprint, new)
        stats = self.stats(message["label"])
        if message["shared"]:
            stats.shared += len(new)
        else:
            stats.computed += len(new)
            self._share(fingerprint, new)
        if new:
            self._advance(message["label"], message["cost"])

    def _share(self, fingerprint: str, new: Sequence[tuple[Key, Response]]) -> None:
        """Give responses to later runs, unless the cache cannot be written."""
        if self._shared is None:
            return
        try:
            self._shared.add(fingerprint, new)
        except RunFolderError as error:
            self._shared = None
            print(f"{error}; responses of this run are not shared with others", file=sys.stderr)

    def _advance(self, label: str, cost: float) -> None:
        self._costs.setdefault(label, [0.0, 0.0])[0] += cost
        self._bar.update(cost)
