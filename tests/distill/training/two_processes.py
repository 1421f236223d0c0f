"""Two processes of one run on this machine, over gloo."""

import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.context import ForkProcess

import pytest
import torch


def loopback_works() -> bool:
    """Whether the loopback interface is up, which it is not in a new network namespace."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        try:
            socket.create_connection(listening.getsockname(), timeout=5).close()
        except OSError:
            return False
    return True


needs_loopback = pytest.mark.skipif(not loopback_works(), reason="the loopback interface is down")


def _worker(rank: int, world_size: int, port: int, work: Callable[[int], object]) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    work(rank)
    if world_size > 1:
        torch.distributed.destroy_process_group()


def start(work: Callable[[int], object], world_size: int = 2) -> list[ForkProcess]:
    """Start the processes of one run, each of which calls `work` with its rank.

    They are forked, which is faster than importing torch again.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_worker, args=(rank, world_size, port, work)) for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    return processes


def finish(processes: list[ForkProcess], seconds: float = 120) -> list[int | None]:
    """Wait for the processes; return their exit codes."""
    for process in processes:
        process.join(seconds)
        process.kill()
        process.join()
    return [process.exitcode for process in processes]


def run_both(work: Callable[[int], object]) -> list[int | None]:
    """Run `work` with the ranks 0 and 1 as one run; return the exit codes."""
    return finish(start(work))
