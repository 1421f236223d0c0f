"""Worker processes that parse and tokenize, with results in the order of the tasks.

Results depend on the tasks only: any number of processes, none included, gives the same sequence.
"""

import logging
import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from evalsuite.distill.data.preparation import Preparation
from evalsuite.foundation import DataError

LOOKAHEAD = 2
"""Tasks per process that are submitted before their results are needed."""
MAX_DEFAULT_WORKERS = 8
MAX_DEATHS = 2
"""Deaths of worker processes during one task after which it is given up."""

Label = TypeVar("Label")
logger = logging.getLogger(__name__)


class WorkerPool:
    """Calls methods of a `Preparation` in processes, which start with the first task.

    A task has no effects, so the tasks of a process that dies are computed again by another one.

    Args:
        num_workers: processes; 0: compute in the calling thread, when a result is needed.
    """

    def __init__(self, preparation: Preparation, num_workers: int = 0) -> None:
        self._preparation, self.num_workers = preparation, num_workers
        self._executor: ProcessPoolExecutor | None = None
        self._folder: TemporaryDirectory[str] | None = None
        self._lock = threading.Lock()

    def map(self, method: str, tasks: Iterable[tuple[Label, tuple[Any, ...]]]) -> Iterator[tuple[Label, Any]]:
        """Yield the label of every task with the method's result.

        Args:
            tasks: a label that stays in this process, and the arguments of the method.

        Raises:
            DataError: of the method, or worker processes die at one task repeatedly.
        """
        if not self.num_workers:
            for label, arguments in tasks:
                yield label, getattr(self._preparation, method)(*arguments)
            return
        upcoming = iter(tasks)
        pending: deque[tuple[Label, tuple[Any, ...]]] = deque()
        submitted: deque[Future[Any]] = deque()
        used: ProcessPoolExecutor | None = None
        deaths = 0
        while True:
            while len(pending) < LOOKAHEAD * self.num_workers:
                if (task := next(upcoming, None)) is None:
                    break
                pending.append(task)
            if not pending:
                return
            executor = self._executor_in_use()
            if executor is not used:
                # The processes died during another call of this method, which started new ones.
                submitted.clear()
                used = executor
            try:
                for _, arguments in islice(pending, len(submitted), None):
                    submitted.append(executor.submit(_call, method, arguments))
                result = submitted[0].result()
            except (BrokenProcessPool, CancelledError) as error:
                deaths += 1
                self._discard(executor)
                if deaths == MAX_DEATHS:
                    raise DataError(DIED.format(num_workers=self.num_workers)) from error
                logger.warning("a data worker process died; its tasks are computed again")
                continue
            deaths = 0
            submitted.popleft()
            yield pending.popleft()[0], result

    def _executor_in_use(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ProcessPoolExecutor(
                    self.num_workers,
                    mp_context=multiprocessing.get_context("spawn"),
                    initializer=_init_worker,
                    initargs=(self._written(),),
                )
            return self._executor

    def _written(self) -> Path:
        """A file with the preparation, written once.

        As an argument, each process would start only after the one before it has read a large vocabulary.
        """
        if self._folder is None:
            pickled = pickle.dumps(self._preparation)
            try:
                folder = TemporaryDirectory(prefix="evalsuite-")
                (Path(folder.name) / "preparation").write_bytes(pickled)
            except OSError as error:
                raise DataError(UNWRITTEN.format(size=len(pickled) / 2**20, reason=error.strerror)) from error
            self._folder = folder
        return Path(self._folder.name) / "preparation"

    def _discard(self, executor: ProcessPoolExecutor) -> None:
        """End an executor whose processes died, unless another call of `map` has replaced it already."""
        with self._lock:
            if self._executor is not executor:
                return
            self._executor = None
        executor.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """End the processes; another task starts new ones."""
        if self._executor is not None:
            self._discard(self._executor)
        with self._lock:
            if self._folder is not None:
                self._folder.cleanup()
                self._folder = None


def default_num_workers(device: str, processes: int) -> int:
    """Worker processes of one training process, if the recipe sets none.

    Args:
        device: `cpu` or `cuda`. On a CPU, training has the cores and takes longer than the data.
        processes: training processes that share this machine's cores.
    """
    if device == "cpu":
        return 0
    return max(1, min(MAX_DEFAULT_WORKERS, len(os.sched_getaffinity(0)) // processes - 1))


DIED = (
    "the data worker processes (num_workers: {num_workers}) died repeatedly at the same documents: the "
    "machine may be out of memory (lower 'num_workers' or the sources' 'shuffle_buffer_size'), or the script "
    'that calls distill() needs `if __name__ == "__main__":`; num_workers: 0 uses no processes'
)

UNWRITTEN = (
    "the vocabulary for the data worker processes ({size:,.0f} MiB) cannot be written to a temporary folder "
    "({reason}): make room, or set TMPDIR to a folder that has some; num_workers: 0 uses no processes"
)

_preparation: Preparation | None = None


def _init_worker(preparation: Path) -> None:
    global _preparation
    try:
        _preparation = pickle.loads(preparation.read_bytes())
    except FileNotFoundError:
        # The pool was closed meanwhile.
        os._exit(1)
    # The trainer stops at the end of a step, for which it may need more data.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # The processes share the cores already.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """A parent that was killed cannot end its workers."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _call(method: str, arguments: tuple[Any, ...]) -> Any:
    assert _preparation is not None
    return getattr(_preparation, method)(*arguments)
