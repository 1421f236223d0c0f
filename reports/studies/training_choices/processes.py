"""Processes of a study: each runs jobs on one GPU; several drivers may share one output folder."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import wait
from types import FrameType
from typing import Any, NamedTuple

from evalsuite.executors.base import Channel, Worker
from evalsuite.executors.local_process import WorkerProcess
from evalsuite.foundation import EvalsuiteError, RunFolderError
from evalsuite.foundation.files import locked
from evalsuite.reports.studies.training_choices.jobs import Job, Setting, run_job

HELD = "another driver of this study has it"
"""Reply of a worker to a job that is running, or finished meanwhile, under another driver."""
LOOK_SECONDS = 5.0
"""Seconds after which idle processes look again: what a job needs may exist before the job that makes it
ends, and another driver may have failed."""


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


class StudyWorker:
    """Runs the jobs of a study, in a process of its own."""

    def __init__(self, setting: Setting) -> None:
        def stop(number: int, frame: FrameType | None) -> None:
            raise KeyboardInterrupt(number)

        self._setting = setting
        signal.signal(signal.SIGTERM, stop)

    def run(self, job: Job, channel: Channel) -> dict[str, Any]:
        """Run a job; return its error or "", and its seconds."""
        started = time.monotonic()
        try:
            error = carry_out(job, self._setting)
        except KeyboardInterrupt:
            sys.exit()
        return {"error": error, "seconds": time.monotonic() - started}

    def close(self) -> None:
        """Jobs leave nothing behind."""


class Outcome(NamedTuple):
    """How a job ended; `error` is empty if it is finished, `gpu` the entry of CUDA_VISIBLE_DEVICES."""

    name: str
    error: str
    seconds: float
    gpu: str | None


@dataclass
class _Queue:
    """Jobs that are to be handed out, in their order; those of other drivers last, and after a while."""

    waiting: list[Job]
    held: dict[str, float] = field(default_factory=dict)
    """Job → when it is tried again."""

    def next(self) -> Job | None:
        """Return the first job that can start; jobs that are finished are dropped."""
        self.waiting = [job for job in self.waiting if not job.done.exists()]
        now = time.monotonic()
        return next((j for j in self.waiting if j.is_ready() and self.held.get(j.name, now) <= now), None)

    def put_back(self, job: Job) -> None:
        """Return a job of another driver to the end, so that it keeps no worker from jobs that nobody has."""
        self.held[job.name] = time.monotonic() + LOOK_SECONDS
        self.waiting.append(job)

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
    worker: Callable[[Setting], Worker] = StudyWorker,
) -> Iterator[Outcome]:
    """Carry out jobs in several processes; yield how they end.

    Args:
        workers: processes, each on the GPU with the fewest of them.
        seconds: after which running jobs are stopped; the next call continues them.
        gpus: entries of CUDA_VISIBLE_DEVICES, one of which a process sees; without any it sees what this
            process sees.
        worker: makes what runs the jobs of a process.
    """
    deadline = time.monotonic() + seconds
    queue = _Queue(list(jobs))
    pool: dict[WorkerProcess, Job | None] = {}
    """Process → the job that it runs."""

    def start() -> WorkerProcess:
        """Start a process on the GPU with the fewest."""
        gpu = min(gpus, key=[each.devices for each in pool].count, default=None)
        process = WorkerProcess(gpu)
        threads = max(1, len(os.sched_getaffinity(0)) // workers)
        process.begin(partial(worker, setting), threads, -(-workers // max(1, len(gpus))))
        return process

    try:
        while (left := deadline - time.monotonic()) > 0:
            _hand_out(queue, pool, start, workers)
            busy = {process.pipe: (process, job) for process, job in pool.items() if job is not None}
            if not busy and not queue.others:
                return
            ready = wait(list(busy), min(left, LOOK_SECONDS))
            for process, job in (busy[each] for each in busy if each in ready):
                outcome = _outcome(process, job)
                pool[process] = None
                if outcome is None:
                    del pool[process]
                    how = f"its process ended {process.how_it_ended()}"
                    outcome = Outcome(job.name, how, 0.0, process.devices)
                if outcome.error == HELD:
                    queue.put_back(job)
                else:
                    yield outcome
    finally:
        for process, running in pool.items():
            if running is None:
                process.send(None)
            else:
                process.stop()
        for process in pool:
            process.wait()
            process.end()


def _outcome(process: WorkerProcess, job: Job) -> Outcome | None:
    """How the job of a process ended; None if the process did."""
    try:
        kind, value = process.pipe.recv()
    except (EOFError, ConnectionError):
        return None
    if kind == "error":
        raise value
    return Outcome(job.name, value["error"], value["seconds"], process.devices)


def _hand_out(
    queue: _Queue, pool: dict[WorkerProcess, Job | None], start: Callable[[], WorkerProcess], workers: int
) -> None:
    """Give jobs to idle processes, and to new ones while there are fewer than `workers`."""
    while (job := queue.next()) is not None:
        process = next((each for each, running in pool.items() if running is None), None)
        if process is None and len(pool) == workers:
            return
        process = process or start()
        queue.waiting.remove(job)
        pool[process] = job
        process.send(job)
