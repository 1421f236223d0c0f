"""Jobs of a SLURM cluster, through submitit; the run folder lies on a file system that all nodes share."""

import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from evalsuite.executors.base import EXECUTORS, Channel, Job, Worker, check_numbers, deliver
from evalsuite.executors.queue import shares
from evalsuite.executors.spool import Spool
from evalsuite.foundation import ConfigError, EvalsuiteError, MissingDependencyError

POLL_SECONDS = 1.0
MESSAGES = "messages.jsonl"
SUBMITTED = "slurm_job"


@EXECUTORS.register("slurm")
@dataclass(frozen=True, kw_only=True)
class SlurmExecutor:
    """Workers that SLURM starts; jobs of one that it ends early are submitted again.

    Args:
        num_workers: SLURM jobs at the same time.
        partition: SLURM's partition; None: its default.
        minutes: time limit of each.
        gpus: GPUs of each, unless the engine needs more.
        cpus: processors of each.
        parameters: further options of `sbatch`, e.g. ``{"account": "lab"}``.
        cluster: ``local`` starts processes on this machine instead.
        retries: SLURM jobs that a job may lose before the run ends with an error.
    """

    num_workers: int = 4
    partition: str | None = None
    minutes: int = 240
    gpus: int = 1
    cpus: int = 4
    parameters: Mapping[str, Any] = field(default_factory=dict)
    cluster: Literal["slurm", "local"] = "slurm"
    retries: int = 3

    def __post_init__(self) -> None:
        check_numbers(self, "slurm", num_workers=1, minutes=1, gpus=0, cpus=1, retries=0)
        if self.cluster not in ("slurm", "local"):
            raise ConfigError(f"executor slurm: 'cluster' = {self.cluster!r}: must be slurm or local")

    def workers(self, gpus: int | None) -> int:
        """Return `num_workers`; SLURM decides when each of them starts."""
        self._submitit()
        return self.num_workers

    def prepare(self, warm_up: Callable[[], None], gpus: int | None) -> None:
        """SLURM decides when workers start."""

    def close(self) -> None:
        pass

    def map(
        self, make_worker: Callable[[], Worker], jobs: Sequence[Job], channel: Channel, folder: Path
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield results as they arrive, as `Executor.map`."""
        self._take_up(folder, channel)
        lost: Counter[int] = Counter()
        waiting = list(range(len(jobs)))
        running: list[_Share] = []
        try:
            while waiting or running:
                if waiting and len(running) < self.num_workers:
                    free = self.num_workers - len(running)
                    running += [
                        self._submit(make_worker, jobs, [waiting[each] for each in share], folder)
                        for share in shares([jobs[each] for each in waiting], free)
                    ]
                    waiting = []
                time.sleep(POLL_SECONDS)
                for share in list(running):
                    # Read first: what is written before the end is read after it.
                    ended = share.handle.done()
                    yield from share.new(channel)
                    if ended:
                        running.remove(share)
                        share.forget()
                        waiting += share.left
                        lost.update(share.left)
                if waiting and (worst := lost.most_common(1)[0])[1] > self.retries:
                    raise EvalsuiteError(
                        f"{jobs[worst[0]]}: {worst[1]} SLURM jobs ended before it did; their logs are in "
                        f"{folder}, responses that arrived are kept; raise minutes (--executor-args "
                        "minutes=N) or repeat the command to resume"
                    )
        finally:
            for share in running:
                share.handle.cancel()

    def _take_up(self, folder: Path, channel: Channel) -> None:
        """Deliver what the workers of a killed process have written, and end them."""
        for path in sorted(folder.glob(f"*/{MESSAGES}")):
            for kind, value in Spool(path).new():
                if kind == "message":
                    channel.send(value)
        for path in sorted(folder.glob(f"*/{SUBMITTED}")):
            if self.cluster == "slurm":
                submitit = self._submitit()
                submitit.SlurmJob(folder=path.parent, job_id=path.read_text()).cancel()
            shutil.rmtree(path.parent)

    def _submit(
        self, make_worker: Callable[[], Worker], jobs: Sequence[Job], indices: list[int], folder: Path
    ) -> "_Share":
        submitit = self._submitit()
        place = folder / f"{time.time_ns():x}"
        place.mkdir(parents=True)
        try:
            executor = submitit.AutoExecutor(folder=place, cluster=self.cluster)
        except RuntimeError as error:
            raise ConfigError(f"executor slurm: no SLURM on this machine ({error})") from error
        executor.update_parameters(
            name="evalsuite",
            timeout_min=self.minutes,
            gpus_per_node=max(self.gpus, jobs[indices[0]].gpus or 0),
            cpus_per_task=self.cpus,
            slurm_partition=self.partition,
            slurm_additional_parameters=dict(self.parameters),
        )
        prepared = [(index, jobs[index].prepare()) for index in indices]
        handle = executor.submit(run_share, make_worker, prepared, place / MESSAGES)
        (place / SUBMITTED).write_text(handle.job_id)
        return _Share(handle, Spool(place / MESSAGES), list(indices))

    def _submitit(self) -> Any:
        try:
            import submitit
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                "executor slurm needs the package 'submitit': pip install 'evalsuite[slurm]'"
            ) from error
        return submitit


@dataclass
class _Share:
    """A SLURM job and what of its jobs is left."""

    handle: Any
    spool: Spool
    left: list[int]

    def new(self, channel: Channel) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Deliver new messages, and yield new results."""
        for kind, value in self.spool.new():
            if (result := deliver(kind, value, channel)) is not None:
                self.left.remove(result["job"])
                yield result["job"], result["value"]

    def forget(self) -> None:
        """Remove the files of a share that is done; those of a lost one stay for their logs."""
        if not self.left:
            shutil.rmtree(self.spool.path.parent)


def run_share(make_worker: Callable[[], Worker], prepared: Sequence[tuple[int, Any]], messages: Path) -> None:
    """In a SLURM job: run jobs one after the other.

    Args:
        make_worker: as for `Executor.map`.
        prepared: (index, what `Job.prepare` returned).
        messages: file for what they send.
    """
    spool = Spool(messages)
    try:
        with closing(make_worker()) as worker:
            for index, each in prepared:
                spool.result(index, worker.run(each, spool))
    except Exception as error:
        spool.failure(error, traceback.format_exc())
        raise
