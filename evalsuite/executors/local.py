"""Jobs on this machine: one after the other in this process, or in processes with a GPU or cores each."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from evalsuite.executors.base import EXECUTORS, Channel, Job, Worker, check_numbers, deliver
from evalsuite.executors.gpus import VISIBLE, likely_gpus, visible_gpus
from evalsuite.executors.local_process import WorkerProcess
from evalsuite.executors.queue import JobQueue
from evalsuite.foundation import ConfigError

_log = logging.getLogger("evalsuite")


@EXECUTORS.register("local")
@dataclass(frozen=True, kw_only=True)
class LocalExecutor:
    """Runs jobs on this machine: in this process, or in one process per GPU or share of the processors.

    Args:
        num_workers: processes, each with GPUs of its own if there are any; with 1, jobs run in this process.
        workers_per_gpu: processes that share a GPU. Each plans with an equal part of its memory.
        retries: processes that a job may lose before the run ends with an error.
    """

    num_workers: int = 1
    workers_per_gpu: int = 1
    retries: int = 3
    _prepared: list[WorkerProcess] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_numbers(self, "local", num_workers=1, workers_per_gpu=1, retries=0)

    def workers(self, gpus: int | None) -> int:
        """Return `num_workers`; with one, the job itself finds out whether there are GPUs."""
        if self.num_workers > 1:
            self._devices(gpus)
        elif gpus != 0 and len(visible_gpus()) > (gpus or 1):
            _log.info(
                "this machine has several GPUs; --executor-args num_workers=N uses one process for each"
            )
        return self.num_workers

    def prepare(self, warm_up: Callable[[], None], gpus: int | None) -> None:
        """Warms up this process if it is the only worker.

        Which GPUs there are is guessed, since torch takes long to import; `map` ends processes for others.
        """
        if self.num_workers == 1:
            with suppress(Exception):
                warm_up()
            return
        names = likely_gpus() if gpus != 0 else ()
        # Too few are refused by `workers`.
        if (shares := self._shares(gpus, names)) is not None:
            for devices in shares:
                self._prepared.append(WorkerProcess(devices, warm_up))

    def map(
        self, make_worker: Callable[[], Worker], jobs: Sequence[Job], channel: Channel, folder: Path
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the results as jobs end, as `Executor.map`; with one worker the next job starts when the last
        one's result is taken."""
        if self.num_workers > 1 and jobs:
            devices = self._devices(jobs[0].gpus)[: len(jobs)]
            if any(each.devices not in devices for each in self._prepared):
                self.close()
            pool = _Pool(make_worker, jobs, channel, self.retries, devices, self._prepared)
            yield from pool.results()
            return
        with closing(make_worker()) as worker:
            for index, job in enumerate(jobs):
                channel.set_description(f"{job} ({index + 1}/{len(jobs)})")
                yield index, worker.run(job.prepare(), channel)

    def close(self) -> None:
        while self._prepared:
            self._prepared.pop().end()

    def _devices(self, gpus: int | None) -> list[str]:
        """`VISIBLE` of each worker; empty without GPUs."""
        names = visible_gpus() if gpus != 0 else ()
        shares = self._shares(gpus, names)
        if shares is None:
            raise ConfigError(
                f"executor local: num_workers = {self.num_workers} with {_needed(gpus, names)} GPU each, and "
                f"this process sees {len(names)}; lower num_workers, or raise workers_per_gpu (now "
                f"{self.workers_per_gpu}), so that processes share GPUs ({VISIBLE} chooses the GPUs)"
            )
        return shares

    def _shares(self, gpus: int | None, names: Sequence[str]) -> list[str] | None:
        """`VISIBLE` of each worker, spread over these GPUs; None if they are too few."""
        needed = _needed(gpus, names)
        if not needed:
            return [""] * self.num_workers
        sets = len(names) // needed
        if self.num_workers > sets * self.workers_per_gpu:
            return None
        return [
            ",".join(names[needed * (each % sets) : needed * (each % sets + 1)])
            for each in range(self.num_workers)
        ]


def _needed(gpus: int | None, names: Sequence[str]) -> int:
    """GPUs of a worker, of which there are these."""
    return int(bool(names)) if gpus is None else gpus


class _Pool:
    """The processes of one call of `map`.

    Args:
        devices: `VISIBLE` of each process.
        prepared: processes that are there already; those with one of the `devices` are taken out.
    """

    def __init__(
        self,
        make_worker: Callable[[], Worker],
        jobs: Sequence[Job],
        channel: Channel,
        retries: int,
        devices: Sequence[str],
        prepared: list[WorkerProcess],
    ) -> None:
        self._make_worker, self._jobs, self._channel = make_worker, jobs, channel
        self._devices, self._prepared = devices, prepared
        self._sharing = max(map(devices.count, devices))
        self._threads = max(1, len(os.sched_getaffinity(0)) // len(devices))
        self._queue = JobQueue(jobs, retries)
        self._running: dict[Connection, tuple[WorkerProcess, int]] = {}
        """Pipe → its process, and the job that it runs."""
        self._ended: list[WorkerProcess] = []

    def results(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield results until every job has one."""
        try:
            for devices in self._devices:
                self._start(devices)
            while self._running:
                for pipe in wait(list(self._running)):
                    assert isinstance(pipe, Connection)
                    yield from self._receive(pipe)
            for process in self._ended:
                process.wait()
        finally:
            for process in [*self._ended, *(process for process, _ in self._running.values())]:
                process.end()

    def _start(self, devices: str) -> None:
        """Start a process with its first job, if there is one."""
        index = self._queue.take()
        if index is None:
            return
        process = next((each for each in self._prepared if each.devices == devices), None)
        if process is None:
            process = WorkerProcess(devices)
        else:
            self._prepared.remove(process)
        self._running[process.pipe] = process, index
        process.begin(self._make_worker, self._threads, self._sharing)
        process.send(self._jobs[index].prepare())

    def _receive(self, pipe: Connection) -> Iterator[tuple[int, Mapping[str, Any]]]:
        process, job = self._running[pipe]
        try:
            kind, value = pipe.recv()
        except (EOFError, ConnectionError):
            self._replace(process, job)
            return
        result = deliver(kind, value, self._channel)
        if result is None:
            return
        index = self._queue.take(self._jobs[job].group)
        if index is None:
            process.send(None)
            self._ended.append(self._running.pop(pipe)[0])
        else:
            self._running[pipe] = process, index
            process.send(self._jobs[index].prepare())
        yield job, result

    def _replace(self, process: WorkerProcess, job: int) -> None:
        """Take back the job of a process that has died, and start another one."""
        del self._running[process.pipe]
        self._queue.put_back(job, process.how_it_ended())
        self._start(process.devices or "")
