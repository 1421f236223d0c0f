"""Compile the Triton kernels of a training step in parallel processes, before the step needs them.

Triton compiles each kernel when it is first launched, one after the other: minutes for a training step. Here
the step is run once with launches recorded instead of executed (`record_launches`), the recorded kernels are
compiled in worker processes, and the step then finds them in Triton's cache on disk.
"""

import fcntl
import hashlib
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from evalsuite.foundation import progress
from evalsuite.models.ops import tuning

MAX_WORKERS = 32
FEW = 8
"""Kernels up to which starting workers, which import torch and fla, takes longer than compiling."""
WORKER = (
    sys.executable,
    "-c",
    # A process per core imports torch while the run needs the cores to read data and build models.
    "import os; os.nice(5); from evalsuite.models.ops.tuning.compile_ahead import main; main()",
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
def record_launches() -> Iterator[list[Launch]]:
    """Within this context kernels that are not compiled yet are recorded instead of compiled and launched.

    Their outputs stay uninitialized, so that all results of the context must be thrown away.
    """
    from triton import knobs

    found: dict[tuple[str, str], Launch] = {}
    launches: list[Launch] = []

    def hook(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        source = fn.jit_function.cache_key
        launch = Launch(fn.module, fn.name, compile["specialization_data"], source)
        if found.setdefault((launch.name, launch.specialization), launch) is launch:
            launches.append(launch)
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


def compile_in_threads(launches: Sequence[Launch], *, quiet: bool = False) -> None:
    """Compile a few kernels in this process, showing progress, which is faster than starting workers."""
    _compile(launches, lambda launch: compile_kernel(**asdict(launch)), len(launches), quiet)


def _compile(
    launches: Sequence[Launch], compile_one: Callable[[Launch], str], threads: int, quiet: bool
) -> dict[str, str]:
    """Call `compile_one`, which returns an error or "", in threads: kernel → error of those with one."""
    failed = {}
    markers = _markers()
    markers.mkdir(parents=True, exist_ok=True)
    pool = ThreadPoolExecutor(max(1, threads))
    futures = {pool.submit(compile_one, launch): launch for launch in launches}
    try:
        with progress(total=len(launches), what="compiling kernels", unit="kernel", quiet=quiet) as bar:
            for future in as_completed(futures):
                launch = futures[future]
                if error := future.result():
                    failed[launch.name] = error
                else:
                    (markers / launch.key).touch()
                bar.set_postfix_str(launch.name, refresh=False)
                bar.update(1)
    finally:
        # Without waiting: Ctrl-C must not take as long as the kernels.
        pool.shutdown(wait=False, cancel_futures=True)
    return failed


class CompileWorkers:
    """Worker processes that compile kernels. They start at once, as importing torch and fla takes seconds.

    They are plain subprocesses that read requests from a pipe, so that they end with their parent, however it
    ends.

    Args:
        count: processes; default: one per core that this process may use, less those of the other runs of
            this host.
        command: program that answers each line of its input, a request, by a line with the error or "".
    """

    def __init__(self, count: int | None = None, command: Sequence[str] = WORKER) -> None:
        self._local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        self._local_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self._slots: list[IO[bytes]] = []
        if count is None:
            cores = len(os.sched_getaffinity(0))
            self._slots = _take_slots(max(1, min(MAX_WORKERS, cores // self._local_size)))
            count = max(1, len(self._slots))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._processes = [
            subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(count)
        ]
        self._idle: queue.SimpleQueue[subprocess.Popen[str]] = queue.SimpleQueue()
        for process in self._processes:
            self._idle.put(process)

    def compile(self, launches: Sequence[Launch], *, quiet: bool = False) -> dict[str, str]:
        """Compile, showing progress; with several processes on a host each takes its share.

        Returns:
            Kernel → error of those that did not compile here; a launch will raise it again.
        """
        # By key, as the processes may see different sets of kernels that are compiled already.
        own = [each for each in launches if int(each.key, 16) % self._local_size == self._local_rank]
        return _compile(own, self._ask, len(self._processes), quiet)

    def _ask(self, launch: Launch) -> str:
        """Have an idle worker compile: the error, "" if there is none."""
        process = self._idle.get()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            print(json.dumps(asdict(launch)), file=process.stdin, flush=True)
            answer = process.stdout.readline()
        except (OSError, ValueError):
            answer = ""
        finally:
            self._idle.put(process)
        return json.loads(answer) if answer else f"compile worker {process.pid} has ended"

    def close(self) -> None:
        """End the processes, also those in the middle of a kernel."""
        for process in self._processes:
            process.kill()
        # All at once: to free what one has imported takes 60 ms.
        for process in self._processes:
            process.wait()
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


def compile_kernel(module: str, name: str, specialization: str, **_: str) -> str:
    """Compile a kernel into Triton's cache on disk; return the error, "" if there is none."""
    from triton.runtime.jit import JITFunction

    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        while not isinstance(function, JITFunction):
            function = function.fn
        function.preload(specialization)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> None:
    """Answer requests, one per line of stdin, by one line of stdout each, until stdin ends."""
    # Ctrl-C reaches all processes of a terminal; the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Compilers print to stdout; answers go to a copy of it.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import fla.ops  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(compile_kernel(**json.loads(line))), file=answers, flush=True)
