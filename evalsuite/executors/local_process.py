"""A worker's process on this machine."""

import gc
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from evalsuite.executors.base import Worker, portable_error
from evalsuite.executors.gpus import VISIBLE, share_memory
from evalsuite.foundation.garbage_collection import collect_rarely
from evalsuite.foundation.process_end import end_quickly

END_SECONDS = 30.0
"""Time in which a process that has no job left, or is stopped, releases or saves what it holds."""


class WorkerProcess:
    """A process that gets ready, then makes a worker, then runs jobs until this side sends None or is gone.

    Args:
        devices: `VISIBLE` in the process; empty without GPUs, None for that of this process.
        warm_up: see `Executor.prepare`.
    """

    def __init__(self, devices: str | None, warm_up: Callable[[], None] | None = None) -> None:
        self.devices = devices
        # A forked process could not use CUDA.
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, devices, warm_up))
        self._process.start()
        theirs.close()

    def begin(self, make_worker: Callable[[], Worker], threads: int, sharing: int) -> None:
        """Make the worker: so many threads compute without a GPU, so many processes share one."""
        self.send((make_worker, threads, sharing))

    def send(self, value: Any) -> None:
        """Send a prepared job, or None; that the process has died shows when its messages are read."""
        with suppress(ConnectionError):
            self.pipe.send(value)

    def how_it_ended(self) -> str:
        """Say how a process ended whose pipe is closed; one that hangs after that is killed."""
        self.wait()
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            self._process.join()
            return "with a hang at its end"
        return f"with exit code {code}" + (" (killed; out of memory?)" if code == -signal.SIGKILL else "")

    def wait(self) -> None:
        """Let it release what it holds, after None was sent or it was stopped."""
        self._process.join(END_SECONDS)

    def stop(self) -> None:
        """Send it SIGTERM, after which its worker may save what it has."""
        self._process.terminate()

    def end(self) -> None:
        """End it, whatever it does."""
        self.stop()
        self.wait()
        self._process.kill()
        self._process.join()
        self.pipe.close()


class _Channel:
    """The channel of a job in a worker's process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def send(self, message: Mapping[str, Any]) -> None:
        self._pipe.send(("message", message))

    def set_description(self, desc: str) -> None:
        self._pipe.send(("description", desc))


def _serve(pipe: Connection, devices: str | None, warm_up: Callable[[], None] | None) -> None:
    """In the process: get ready, and run the jobs that arrive."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    collect_rarely()
    codes: list[int] = []
    end_quickly(codes)
    # CUDA reads it when it is used first, which is in this process.
    if devices is not None:
        os.environ[VISIBLE] = devices
    if warm_up is not None:
        # What fails here fails again in a job, which reports it.
        with suppress(Exception):
            warm_up()
        # What was imported stays, and collections need not traverse it.
        gc.freeze()
    # Closed at once: threads of libraries can keep a process that has failed from ending.
    with suppress(EOFError, ConnectionError), closing(pipe):
        try:
            make_worker, threads, sharing = pipe.recv()
            if devices and sharing > 1:
                share_memory(sharing)
            if not devices and "OMP_NUM_THREADS" not in os.environ:
                import torch

                torch.set_num_threads(threads)
            with closing(make_worker()) as worker:
                while (prepared := pipe.recv()) is not None:
                    pipe.send(("result", worker.run(prepared, _Channel(pipe))))
        except (EOFError, ConnectionError):
            raise
        except Exception as error:
            pipe.send(("error", portable_error(error, "local")))
    codes.append(0)
