"""Processes of a study: each runs jobs on one GPU; several drivers may share one output folder."""

import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import NamedTuple

from evalsuite.executors.gpus import VISIBLE
from evalsuite.foundation import EvalsuiteError, RunFolderError
from evalsuite.foundation.files import locked
from evalsuite.reports.studies.training_choices.jobs import Job, Setting, run_job

HELD = "another driver of this study has it"
"""Reply of a worker to a job that is running, or finished meanwhile, under another driver."""
STOP_SECONDS = 30.0
"""Time that workers have to save their states when the time of a call is over."""
LOOK_SECONDS = 5.0
"""Seconds after which idle processes look again: what a job needs may exist before the job that makes it
ends, and another driver may have failed."""


@contextmanager
def _environment(name: str, value: str | None) -> Iterator[None]:
    """Set a variable for the processes that start meanwhile; None leaves it alone."""
    before = os.environ.get(name)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        if value is not None:
            os.environ.pop(name)
            if before is not None:
                os.environ[name] = before


def carry_out(job: Job, setting: Setting) -> str:
    """Run a job under its lock; return "" or why it failed.

    Returns:
        `HELD` if another driver's process is running it, or has finished it.
    """
    try:
        with locked(setting.out / "locks" / job.name, wait=False):
            if job.done.exists():
                return HELD
            try:
                run_job(job, setting)
            except EvalsuiteError as error:
                return str(error)
            except Exception:
                return traceback.format_exc()
            return ""
    except RunFolderError:
        return HELD


def work(connection: Connection, setting: Setting) -> None:
    """Run the jobs that arrive, in a process of its own; reply (name, error or "", seconds)."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while (job := connection.recv()) is not None:
            started = time.monotonic()
            error = carry_out(job, setting)
            connection.send((job.name, error, time.monotonic() - started))
    except (KeyboardInterrupt, EOFError):
        pass


class Outcome(NamedTuple):
    """How a job ended; `error` is empty if it is finished, `gpu` the entry of CUDA_VISIBLE_DEVICES."""

    name: str
    error: str
    seconds: float
    gpu: str | None


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    gpu: str | None
    job: Job | None = None


@dataclass
class _Queue:
    """Jobs that are to be handed out, in their order; those of other drivers after a while."""

    waiting: list[Job]
    held: dict[str, float] = field(default_factory=dict)
    """Job → when it is tried again."""

    def next(self) -> Job | None:
        """Return the first job that can start; jobs that are finished are dropped."""
        self.waiting = [job for job in self.waiting if not job.done.exists()]
        now = time.monotonic()
        return next((j for j in self.waiting if j.is_ready() and self.held.get(j.name, now) <= now), None)

    def put_back(self, job: Job, jobs: Sequence[Job]) -> None:
        """Return a job of another driver to its place."""
        self.held[job.name] = time.monotonic() + LOOK_SECONDS
        self.waiting = sorted([*self.waiting, job], key=jobs.index)

    @property
    def others(self) -> bool:
        """Whether another driver has jobs that are not finished."""
        return any(job.name in self.held for job in self.waiting)


def run_study(
    setting: Setting,
    jobs: Sequence[Job],
    *,
    workers: int,
    seconds: float,
    gpus: Sequence[str] = (),
    work: Callable[[Connection, Setting], None] = work,
) -> Iterator[Outcome]:
    """Carry out jobs in several processes; yield how they end.

    Args:
        workers: processes, each on the GPU with the fewest of them.
        seconds: after which running jobs are stopped; the next call continues them.
        gpus: entries of CUDA_VISIBLE_DEVICES, one of which a process sees; without any it sees what this
            process sees.
        work: what a process runs: replies to each job that it receives, until it receives None.
    """
    deadline = time.monotonic() + seconds
    queue = _Queue(list(jobs))
    pool: list[_Worker] = []
    try:
        while (left := deadline - time.monotonic()) > 0:
            _hand_out(queue, pool, lambda: _start(pool, setting, gpus, work), workers)
            busy = {each.connection: each for each in pool if each.job is not None}
            if not busy and not queue.others:
                return
            ready = wait(list(busy), min(left, LOOK_SECONDS))
            for worker in (busy[each] for each in busy if each in ready):
                job, worker.job = worker.job, None
                assert job is not None
                try:
                    name, error, took = worker.connection.recv()
                    outcome = Outcome(name, error, took, worker.gpu)
                except EOFError:
                    worker.process.join(STOP_SECONDS)
                    code = worker.process.exitcode
                    killed = "; killed (out of memory? fewer --workers)" if code == -9 else ""
                    error = f"its process ended with code {code}{killed}"
                    outcome = Outcome(job.name, error, 0.0, worker.gpu)
                    pool.remove(worker)
                if outcome.error == HELD:
                    queue.put_back(job, jobs)
                else:
                    yield outcome
    finally:
        for worker in pool:
            if worker.job is None:
                worker.connection.send(None)
            else:
                worker.process.terminate()
        for worker in pool:
            worker.process.join(STOP_SECONDS)
            worker.process.kill()


def _hand_out(queue: _Queue, pool: list[_Worker], start: Callable[[], _Worker], workers: int) -> None:
    """Give jobs to idle workers, and to new ones while there are fewer than `workers`."""
    while (job := queue.next()) is not None:
        worker = next((each for each in pool if each.job is None), None)
        if worker is None and len(pool) == workers:
            return
        worker = worker or start()
        queue.waiting.remove(job)
        worker.job = job
        worker.connection.send(job)


def _start(
    pool: list[_Worker],
    setting: Setting,
    gpus: Sequence[str],
    work: Callable[[Connection, Setting], None],
) -> _Worker:
    """Add a worker to the pool, on the GPU with the fewest workers."""
    gpu = min(gpus, key=[each.gpu for each in pool].count, default=None)
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=work, args=(there, setting))
    # Before the process imports torch, which reads the variable once.
    with _environment(VISIBLE, gpu):
        process.start()
    there.close()
    pool.append(_Worker(process, here, gpu))
    return pool[-1]
