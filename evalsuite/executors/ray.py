"""Workers of a Ray cluster: an existing one by its address, or one on this machine."""

import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.executors.base import (
    EXECUTORS,
    Channel,
    Job,
    Worker,
    check_numbers,
    deliver,
    portable_error,
)
from evalsuite.executors.queue import JobQueue
from evalsuite.foundation import ConfigError, MissingDependencyError

POLL_SECONDS = 1.0


@EXECUTORS.register("ray")
@dataclass(kw_only=True)
class RayExecutor:
    """Workers of a Ray cluster; a lost one is replaced, and its job is done by another.

    Args:
        address: of a running cluster, such as ``auto`` or ``ray://head:10001``; None: one on this machine.
        num_workers: at most this many; None: as many as the cluster has GPUs (or, without GPUs, processors).
        cpus: processors of each worker.
        retries: workers that a job may lose before the run ends with an error.
    """

    address: str | None = None
    num_workers: int | None = None
    cpus: int = 1
    retries: int = 3
    _connected = False
    """Whether this executor made the connection; one that the caller had is left open."""

    def __post_init__(self) -> None:
        check_numbers(self, "ray", cpus=1, retries=0)
        if self.num_workers is not None:
            check_numbers(self, "ray", num_workers=1)

    def workers(self, gpus: int | None) -> int:
        """Return how many workers the cluster has room for; connects to it."""
        resources = self._connect()
        needed = _gpus(gpus, resources)
        room = int(resources.get("CPU", 0) // self.cpus)
        if needed:
            room = min(room, int(resources.get("GPU", 0) // needed))
        if room < 1:
            have = ", ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))
            raise ConfigError(
                f"executor ray: the cluster has {have}; a worker needs {self.cpus} CPU and {needed} GPU "
                "(--device, tensor_parallel_size, --executor-args cpus=N)"
            )
        return min(room, self.num_workers or room)

    def prepare(self, warm_up: Callable[[], None], gpus: int | None) -> None:
        """Workers start with their first job."""

    def close(self) -> None:
        pass

    def map(
        self, make_worker: Callable[[], Worker], jobs: Sequence[Job], channel: Channel, folder: Path
    ) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield results as they arrive, as `Executor.map`."""
        if not jobs:
            return
        count = min(self.workers(jobs[0].gpus), len(jobs))
        gpus = _gpus(jobs[0].gpus, self._connect())
        try:
            yield from _Pool(make_worker, jobs, channel, self, gpus, count).results()
        finally:
            if self._connected:
                _ray().shutdown()
                self._connected = False

    def _connect(self) -> dict[str, float]:
        """Connect unless connected, and return the resources of the cluster."""
        ray = _ray()
        if not ray.is_initialized():
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
            if self.address is None:
                options |= {"include_dashboard": False}
                if self.num_workers is not None:
                    options["num_cpus"] = self.num_workers * self.cpus
            else:
                options["address"] = self.address
            try:
                ray.init(**options)
            except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
                raise ConfigError(
                    f"executor ray: no cluster at {self.address or 'this machine'} ({error})"
                ) from error
            self._connected = True
        return dict(ray.cluster_resources())


def _gpus(wanted: int | None, resources: Mapping[str, float]) -> int:
    return int(resources.get("GPU", 0) >= 1) if wanted is None else wanted


def _ray() -> Any:
    # Read at import: warnings about a variable that Ray sets for processes without GPUs.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "executor ray needs the package 'ray': pip install 'evalsuite[ray]'"
        ) from error
    return ray


class _Host:
    """In a worker's process: runs one job at a time, next to the calls that fetch its messages."""

    def __init__(self, make_worker: Callable[[], Worker]) -> None:
        self._worker = make_worker()
        self._messages: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def start(self, prepared: Any) -> None:
        """Begin a job."""
        threading.Thread(target=self._run, args=(prepared,), daemon=True).start()

    def poll(self, seconds: float) -> list[tuple[str, Any]]:
        """Return what has happened since the last call; wait for something at most this long."""
        found: list[tuple[str, Any]] = []
        with suppress(queue.Empty):
            found.append(self._messages.get(timeout=seconds))
            while True:
                found.append(self._messages.get_nowait())
        return found

    def close(self) -> None:
        """Release what the worker holds."""
        self._worker.close()

    def send(self, message: Mapping[str, Any]) -> None:
        self._messages.put(("message", message))

    def set_description(self, desc: str) -> None:
        self._messages.put(("description", desc))

    def _run(self, prepared: Any) -> None:
        try:
            self._messages.put(("result", self._worker.run(prepared, self)))
        except BaseException as error:
            self._messages.put(("error", portable_error(error, "ray")))


class _Pool:
    """The workers of one call, and what each of them does."""

    def __init__(
        self,
        make_worker: Callable[[], Worker],
        jobs: Sequence[Job],
        channel: Channel,
        executor: RayExecutor,
        gpus: int,
        count: int,
    ) -> None:
        self._host = _ray().remote(_Host)
        self._options = {"num_cpus": executor.cpus, "num_gpus": gpus}
        self._make_worker = make_worker
        self._jobs, self._channel = jobs, channel
        self._queue = JobQueue(jobs, executor.retries)
        self._polls: dict[Any, tuple[Any, int]] = {}
        """Pending call → the worker, and the job that it runs."""
        self._count = count

    def results(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield results until every job has one."""
        ray = _ray()
        for _ in range(self._count):
            self._hand_out(None, None)
        while self._polls:
            (done,), _ = ray.wait(list(self._polls), num_returns=1)
            host, index = self._polls.pop(done)
            try:
                events = ray.get(done)
            except ray.exceptions.RayActorError as error:
                self._replace(host, index, error)
                continue
            result = None
            for kind, value in events:
                if (delivered := deliver(kind, value, self._channel)) is not None:
                    result = delivered
            if result is None:
                self._poll(host, index)
                continue
            # The next job runs while the caller takes this result.
            self._hand_out(host, self._jobs[index].group)
            yield index, result

    def _hand_out(self, host: Any, group: str | None) -> None:
        """Give a worker, or a new one, its next job."""
        index = self._queue.take(group)
        if index is None:
            if host is not None:
                host.close.remote()
            return
        if host is None:
            host = self._host.options(max_concurrency=2, **self._options).remote(self._make_worker)
        host.start.remote(self._jobs[index].prepare())
        self._poll(host, index)

    def _poll(self, host: Any, index: int) -> None:
        self._polls[host.poll.remote(POLL_SECONDS)] = host, index

    def _replace(self, host: Any, index: int, error: Exception) -> None:
        """Take back the job of a lost worker, and start another worker."""
        self._queue.put_back(index, f"by: {error}")
        self._hand_out(None, None)
