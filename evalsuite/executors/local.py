"""Jobs on this machine: one after the other in this process, or in processes with a GPU or cores each."""

import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from evalsuite.executors.base import EXECUTORS, Channel, Job, Worker, portable_error
from evalsuite.executors.gpus import VISIBLE, visible_gpus
from evalsuite.executors.queue import JobQueue
from evalsuite.foundation import ConfigError

_log = logging.getLogger("evalsuite")

END_SECONDS = 30.0
"""Time in which a process that has no job left releases what it holds."""


@EXECUTORS.register("local")
@dataclass(frozen=True, kw_only=True)
class LocalExecutor:
    """Runs jobs on this machine: in this process, or in one process per GPU or share of the processors.

    Args:
        num_workers: processes, each with GPUs of its own if there are any; with 1, jobs run in this process.
        retries: processes that a job may lose before the run ends with an error.
    """

    num_workers: int = 1
    retries: int = 3

    def __post_init__(self) -> None:
        for name, least in (("num_workers", 1), ("retries", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"executor local: '{name}' = {value!r}: must be a number of at least {least}"
                )

    def workers(self, gpus: int | None) -> int:
        """Return `num_workers`; with one, the job itself finds out whether there are GPUs."""
        if self.num_workers > 1:
            self._devices(gpus)
        elif gpus != 0 and len(visible_gpus()) > (gpus or 1):
            _log.info(
                "this machine has several GPUs; --executor-args num_workers=N uses one process for each"
            )
        return self.num_workers

    def map(
        self, make_worker: Callable[[], Worker], jobs: Sequence[Job], channel: Channel, folder: Path
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the results as jobs end, as `Executor.map`; with one worker the next job starts when the last
        one's result is taken."""
        if self.num_workers > 1 and jobs:
            devices = self._devices(jobs[0].gpus)[: len(jobs)]
            yield from _Pool(make_worker, jobs, channel, self.retries, devices).results()
            return
        with closing(make_worker()) as worker:
            for index, job in enumerate(jobs):
                channel.set_description(f"{job} ({index + 1}/{len(jobs)})")
                yield index, worker.run(job.prepare(), channel)

    def _devices(self, gpus: int | None) -> list[str]:
        """`VISIBLE` of each worker; empty without GPUs."""
        names = visible_gpus() if gpus != 0 else []
        needed = int(bool(names)) if gpus is None else gpus
        if needed * self.num_workers > len(names):
            raise ConfigError(
                f"executor local: num_workers = {self.num_workers} with {needed} GPU each, and this process "
                f"sees {len(names)}; lower num_workers ({VISIBLE} chooses the GPUs)"
            )
        return [",".join(names[needed * each : needed * (each + 1)]) for each in range(self.num_workers)]


class _Pipe:
    """The channel of a job in a worker's process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def send(self, message: Mapping[str, Any]) -> None:
        self._pipe.send(("message", message))

    def set_description(self, desc: str) -> None:
        self._pipe.send(("description", desc))


def _serve(pipe: Connection, make_worker: Callable[[], Worker], devices: str, threads: int) -> None:
    """In a worker's process: run the jobs that arrive until there is none, or the other side has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # CUDA reads it when it is used first, which is in the worker.
    os.environ[VISIBLE] = devices
    if not devices and "OMP_NUM_THREADS" not in os.environ:
        import torch

        torch.set_num_threads(threads)
    with suppress(EOFError, ConnectionError):
        try:
            with closing(make_worker()) as worker:
                while (prepared := pipe.recv()) is not None:
                    pipe.send(("result", worker.run(prepared, _Pipe(pipe))))
        except (EOFError, ConnectionError):
            raise
        except Exception as error:
            pipe.send(("error", portable_error(error, "local")))


@dataclass(eq=False)
class _Member:
    """A worker's process and the job that it runs."""

    process: Any
    devices: str
    job: int


class _Pool:
    """The processes of one call of `map`."""

    def __init__(
        self,
        make_worker: Callable[[], Worker],
        jobs: Sequence[Job],
        channel: Channel,
        retries: int,
        devices: Sequence[str],
    ) -> None:
        self._make_worker, self._jobs, self._channel = make_worker, jobs, channel
        self._devices = devices
        self._threads = max(1, len(os.sched_getaffinity(0)) // len(devices))
        self._queue = JobQueue(jobs, retries)
        self._running: dict[Connection, _Member] = {}
        self._ended: list[Any] = []

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
                process.join(END_SECONDS)
        finally:
            for process in [*self._ended, *(member.process for member in self._running.values())]:
                process.terminate()
                process.join()

    def _start(self, devices: str) -> None:
        """Start a process with its first job, if there is one."""
        index = self._queue.take()
        if index is None:
            return
        # A forked process could not use CUDA.
        context = get_context("spawn")
        pipe, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._make_worker, devices, self._threads))
        process.start()
        theirs.close()
        self._running[pipe] = _Member(process, devices, index)
        self._send(pipe, index)

    def _send(self, pipe: Connection, index: int | None) -> None:
        # The loss of a process shows when its messages are read.
        with suppress(ConnectionError):
            pipe.send(None if index is None else self._jobs[index].prepare())

    def _receive(self, pipe: Connection) -> Iterator[tuple[int, Mapping[str, Any]]]:
        member = self._running[pipe]
        try:
            kind, value = pipe.recv()
        except (EOFError, ConnectionError):
            self._replace(pipe, member)
            return
        if kind == "message":
            self._channel.send(value)
        elif kind == "description":
            self._channel.set_description(value)
        elif kind == "error":
            raise value
        else:
            done = member.job
            index = self._queue.take(self._jobs[done].group)
            self._send(pipe, index)
            if index is None:
                self._ended.append(self._running.pop(pipe).process)
            else:
                member.job = index
            yield done, value

    def _replace(self, pipe: Connection, member: _Member) -> None:
        """Take back the job of a process that has died, and start another one."""
        del self._running[pipe]
        member.process.join()
        self._queue.put_back(member.job, f"with exit code {member.process.exitcode}")
        self._start(member.devices)
