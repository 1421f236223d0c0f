"""Processes that build and score in parallel, forked from one that has imported the harnesses once."""

import gc
import multiprocessing
import os
import pickle
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from evalsuite.config import RunConfig
from evalsuite.foundation import EvalsuiteError, RunFolderError
from evalsuite.reports.run import read_manifest

if TYPE_CHECKING:
    from evalsuite.tasks.benchmark import Benchmark
    from evalsuite.tasks.suite import Entry

MAX_WORKERS = 8
MIN_ROWS = 500
"""Rows from which processes pay off that are there already."""
MIN_ROWS_TO_IMPORT = 20_000
"""Rows from which they pay off if the harnesses have to be imported for them first."""
MIN_ROWS_TO_PREPARE = 2_000
"""Rows of a run from which the harnesses are imported in advance, while this process imports torch."""
ROWS_OF_UNKNOWN = 1_000
"""Documents to expect of a benchmark that does not state how many it has."""

Task = TypeVar("Task")
Result = TypeVar("Result")


def num_processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pays_off(config: RunConfig) -> bool:
    """Whether a run is likely to need workers, so that the harnesses are best imported in advance."""
    if config.workers != "auto" or not set(config.phases) - {"infer"} or num_processors() < 2:
        return False
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return False
    try:
        return _rows_of_run(config) >= MIN_ROWS_TO_PREPARE
    except (EvalsuiteError, OSError, ValueError, LookupError, TypeError):
        # The run itself reports it.
        return False


def _rows_of_run(config: RunConfig) -> int:
    """Return about how many documents under one protocol a run builds, or scores for all checkpoints."""
    if config.suite is None:
        manifest = read_manifest(Path(config.out))
        documents = [how.total for each in manifest.benchmarks for how in each.protocols.values()]
        return sum(documents) * len(manifest.checkpoints)
    from evalsuite.tasks.suite import load_suite, resolve, suite_folder

    entries = resolve(load_suite(config.suite), near=suite_folder(config.suite), only=config.batches)
    return expected_rows(entries, config.limit)


def expected_rows(entries: Iterable[tuple["Entry", "Benchmark"]], limit: int | None) -> int:
    """Return about how many documents, counted under each protocol, these benchmarks have.

    Args:
        entries: resolved.
        limit: documents per benchmark, instead of the entries' own limits.
    """
    return sum(
        min(limit or entry.limit or ROWS_OF_UNKNOWN, benchmark.expected_documents or ROWS_OF_UNKNOWN)
        * max(1, len(entry.contexts))
        * len(entry.protocols)
        for entry, benchmark in entries
    )


@dataclass(frozen=True)
class Shared:
    """A value for all workers; each reads it once."""

    value: Any = None
    path: str | None = None

    def get(self) -> Any:
        """Return the value."""
        return self.value if self.path is None else _read(self.path)


@lru_cache(maxsize=8)
def _read(path: str) -> Any:
    with open(path, "rb") as file:
        return pickle.load(file)


class WorkerPool:
    """Processes for the tasks of a run, started with the first ones that are worth it.

    Args:
        workers: number of processes; None decides by the number of processors and of rows. With 1, tasks run
            in this process. Others import the main module of this one, as multiprocessing does.
        preload: modules that are imported once, from now on, by a process that the workers are forked from.
    """

    def __init__(self, workers: int | None = 1, *, preload: Sequence[str] = ()) -> None:
        self._workers = workers
        self._context = multiprocessing.get_context("forkserver" if preload else "spawn")
        self._preloads = bool(preload)
        if preload:
            from multiprocessing.forkserver import ensure_running

            self._context.set_forkserver_preload(list(preload))
            ensure_running()
        self._pool: ProcessPoolExecutor | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        if self._folder is not None:
            self._folder.cleanup()

    def size(self, rows: int) -> int:
        """Return the number of processes that share so many rows; 1 is this process."""
        if self._workers is not None:
            return self._workers
        enough = MIN_ROWS if self._pool is not None or self._preloads else MIN_ROWS_TO_IMPORT
        return min(MAX_WORKERS, num_processors()) if rows >= enough else 1

    def share(self, value: Any, rows: int) -> Shared:
        """Hand a value to the workers that share so many rows."""
        if self.size(rows) < 2:
            return Shared(value)
        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="evalsuite-")
        number, path = tempfile.mkstemp(dir=self._folder.name)
        with open(number, "wb") as file:
            pickle.dump(value, file, protocol=pickle.HIGHEST_PROTOCOL)
        return Shared(path=path)

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], *, rows: int
    ) -> Iterator[tuple[int, Result]]:
        """Yield (index of the task, its result) as tasks end.

        Args:
            function: of a module.
            tasks: the longest first, for an even finish.
            rows: about how many documents they handle; few are handled in this process, in order.

        Raises:
            RunFolderError: a process was killed. What a task raises is raised here.
        """
        size = self.size(rows)
        if size < 2:
            for number, task in enumerate(tasks):
                yield number, function(task)
            return
        if self._pool is None:
            # A plain fork of a process with data sets loaded, and their threads, may deadlock.
            self._pool = ProcessPoolExecutor(size, self._context, initializer=_begin)
        futures: dict[Future[Result], int] = {}
        try:
            # A process can also be killed while tasks are still handed out.
            for number, task in enumerate(tasks):
                futures[self._pool.submit(function, task)] = number
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise RunFolderError(
                "a worker process was killed, perhaps out of memory; repeat the command to resume, if it "
                "happens again with fewer --workers"
            ) from error
        finally:
            for future in futures:
                future.cancel()


def _begin() -> None:
    # What was imported before stays, and collections need not traverse it.
    gc.freeze()
    # The parent handles interruptions: it cancels the tasks that have not started.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
