"""Compile the Triton kernels of a training step in parallel processes, before the step needs them.

Triton compiles each kernel when it is first launched, one after the other: minutes for a training step. Here
the step is run once with launches recorded instead of executed (`record_launches`), the recorded kernels are
compiled in worker processes meanwhile, and the step then finds them in Triton's cache on disk.
"""

import fcntl
import hashlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from evalsuite.foundation import progress
from evalsuite.models.ops import tuning
from evalsuite.models.ops.tuning.compile_worker import compile_kernel

MAX_WORKERS = 32
FEW = 8
"""Kernels up to which starting workers, which import torch and fla, takes longer than compiling."""
WORKER = (
    sys.executable,
    "-c",
    "from evalsuite.models.ops.tuning.compile_worker import main; main()",
)


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel that is not compiled yet.

    Args:
        module, name: where its function is defined.
        specialization: what triton's `JITFunction.preload` compiles from.
        source: hash of its code and of what it calls.
    """

    module: str
    name: str
    specialization: str
    source: str = ""

    @property
    def key(self) -> str:
        """Identity of the compiled kernel on this machine."""
        return hashlib.sha256(f"{self.source} {self.specialization}".encode()).hexdigest()


@contextmanager
def record_launches(found: Callable[[Launch], None] = lambda launch: None) -> Iterator[list[Launch]]:
    """Within this context kernels that are not compiled yet are recorded instead of compiled and launched.

    Their outputs stay uninitialized, so that all results of the context must be thrown away.

    Args:
        found: called with each as soon as it is recorded.
    """
    from triton import knobs

    known: dict[tuple[str, str], Launch] = {}
    launches: list[Launch] = []

    def hook(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        source = fn.jit_function.cache_key
        launch = Launch(fn.module, fn.name, compile["specialization_data"], source)
        if known.setdefault((launch.name, launch.specialization), launch) is launch:
            launches.append(launch)
            found(launch)
        return True

    active = tuning.active()
    previous, knobs.runtime.jit_cache_hook = knobs.runtime.jit_cache_hook, hook
    if active is not None:
        active.recording = True
    try:
        yield launches
    finally:
        knobs.runtime.jit_cache_hook = previous
        if active is not None:
            active.recording = False


def has_compiled() -> bool:
    """Whether kernels were compiled ahead on this machine before."""
    return _markers().is_dir()


def not_compiled(launches: Sequence[Launch]) -> list[Launch]:
    """The launches that no worker of this machine has compiled."""
    return [launch for launch in launches if not (_markers() / launch.key).exists()]


def _markers() -> Path:
    """Folder of empty files, one per kernel compiled ahead, next to what Triton caches."""
    home = Path(os.environ.get("TRITON_HOME") or Path.home())
    return Path(os.environ.get("TRITON_CACHE_DIR") or home / ".triton" / "cache") / "evalsuite"


def compile_in_threads(launches: Sequence[Launch], *, quiet: bool = False) -> dict[str, str]:
    """Compile a few kernels in this process, which is faster than starting workers.

    Arguments and result are those of `CompileWorkers.compile`.
    """
    pool = ThreadPoolExecutor(max(1, len(launches)))
    try:
        return _finish({pool.submit(compile_kernel, **asdict(each)): each for each in launches}, quiet)
    finally:
        # Without waiting: Ctrl-C must not take as long as the kernels.
        pool.shutdown(wait=False, cancel_futures=True)


def _finish(compiling: Mapping["Future[str]", Launch], quiet: bool) -> dict[str, str]:
    """Wait for the results, errors or "", showing progress: kernel → error of those with one."""
    failed = {}
    markers = _markers()
    markers.mkdir(parents=True, exist_ok=True)
    with progress(total=len(compiling), what="compiling kernels", unit="kernel", quiet=quiet) as bar:
        for future in as_completed(compiling):
            launch = compiling[future]
            if error := future.result():
                failed[launch.name] = error
            else:
                (markers / launch.key).touch()
            bar.set_postfix_str(launch.name, refresh=False)
            bar.update(1)
    return failed


class CompileWorkers:
    """Worker processes that compile kernels. They start at once, as importing torch and fla takes seconds.

    One process imports torch and forks them: imported by each, it would take the cores from whoever builds
    models meanwhile. They read requests from pipes, so that they end with this process, however it ends.

    Args:
        count: processes; default: one per core that this process may use, less those of the other runs of
            this host.
        command: program that forks them, given two file descriptors of each (see `compile_worker.main`).
    """

    def __init__(self, count: int | None = None, command: Sequence[str] = WORKER) -> None:
        self._local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self._local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._slots: list[IO[bytes]] = []
        if count is None:
            cores = len(os.sched_getaffinity(0))
            self._slots = _take_slots(max(1, min(MAX_WORKERS, cores // self._local_size)))
            count = max(1, len(self._slots))
        pipes = [(os.pipe(), os.pipe()) for _ in range(count)]
        ends = [end for requests, answers in pipes for end in (requests[0], answers[1])]
        self._process = subprocess.Popen(
            [*command, *map(str, ends)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                # A process with threads, as numpy starts them, is not to be forked.
                "OMP_NUM_THREADS": "1",
                # Nor is one in which CUDA's runtime has counted GPUs, as importing torch._inductor does.
                "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            },
            stdin=subprocess.DEVNULL,
            pass_fds=ends,
            # Ctrl-C reaches all of a terminal's foreground group; `close` ends this one.
            process_group=0,
        )
        for end in ends:
            os.close(end)
        self._pipes = [
            # Without a buffer, whose rest could not be written once a worker has ended.
            (open(requests[1], "wb", buffering=0), open(answers[0]))  # noqa: SIM115 -- closed by `close`
            for requests, answers in pipes
        ]
        self._threads = ThreadPoolExecutor(count)
        self._compiling: dict[Future[str], Launch] = {}
        self._idle: queue.SimpleQueue[tuple[IO[bytes], IO[str]]] = queue.SimpleQueue()
        for pipe in self._pipes:
            self._idle.put(pipe)

    def begin(self, launch: Launch) -> None:
        """Have a kernel compiled, for a later call of `compile`; those that were compiled before are not.

        With several processes on a host each takes its share.
        """
        # By key, as the processes may see different sets of kernels that are compiled already.
        if int(launch.key, 16) % self._local_size == self._local_rank and not_compiled([launch]):
            self._compiling[self._threads.submit(self._ask, launch)] = launch

    def compile(self, launches: Sequence[Launch], *, quiet: bool = False) -> dict[str, str]:
        """Compile these kernels and those that were begun, showing progress.

        Returns:
            Kernel → error of those that did not compile here; a launch will raise it again.
        """
        begun = set(self._compiling.values())
        for launch in launches:
            if launch not in begun:
                self.begin(launch)
        compiling, self._compiling = self._compiling, {}
        return _finish(compiling, quiet)

    def _ask(self, launch: Launch) -> str:
        """Have an idle worker compile: the error, "" if there is none."""
        pipe = self._idle.get()
        requests, answers = pipe
        try:
            requests.write(json.dumps(asdict(launch)).encode() + b"\n")
            answer = answers.readline()
        except (OSError, ValueError):
            answer = ""
        finally:
            self._idle.put(pipe)
        return json.loads(answer) if answer else "the compile worker has ended"

    def close(self) -> None:
        """End the processes, also those in the middle of a kernel."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for requests, answers in self._pipes:
            requests.close()
            # Until the worker has ended, it holds memory of the GPU.
            while os.read(answers.fileno(), 1 << 16):
                pass
            answers.close()
        for slot in self._slots:
            slot.close()

    def __enter__(self) -> "CompileWorkers":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _take_slots(most: int) -> list[IO[bytes]]:
    """Lock up to `most` of this host's slots, one per core, until the files are closed or the process ends.

    Runs that share a GPU would otherwise start a process per core each, and run out of memory.
    """
    folder = Path(tempfile.gettempdir()) / f"evalsuite-compile-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    taken: list[IO[bytes]] = []
    for number in range(os.cpu_count() or 1):
        if len(taken) == most:
            break
        slot = open(folder / str(number), "ab")  # noqa: SIM115 -- closed by `close`
        try:
            fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            slot.close()
        else:
            taken.append(slot)
    return taken
