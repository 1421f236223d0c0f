"""Decode steps without Python: on a GPU a step is captured once and then replayed.

A step of a small model is over a thousand tiny kernels, and launching them from Python takes several
times as long as running them. A captured step has fixed shapes, so rows and lengths are rounded up to a
few sizes; each size is captured when it is first needed.
"""

import logging
from collections.abc import Callable

import torch

from evalsuite.models.engine.decode import Rows

_log = logging.getLogger(__name__)

SMALLEST_LENGTH = 128
SMALLEST_ROWS = 8


def eager(rows: Rows) -> Callable[[int, int], None]:
    """The step function as it is."""
    return rows.step


def graphed(rows: Rows) -> Callable[[int, int], None]:
    """The step function through CUDA graphs."""
    return _Graphs(rows).step


class _Graphs:
    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph | None] = {}
        self.pool = torch.cuda.graph_pool_handle()
        self.capturable = True

    def step(self, rows: int, length: int) -> None:
        """Take one step of at least `rows` rows and `length` keys; what is beyond them is not looked at."""
        capacity = self.rows.slots.capacity
        # Without keys there is nothing that grows with the length.
        longest = rounded_length(length, capacity) if self.rows.decoder.token_bytes else capacity
        size = rounded_rows(rows, self.rows.slots.rows), longest
        if not self.capturable:
            self.rows.step(rows, length)
        elif size not in self.graphs:
            # The first step of a size runs as it is: kernels are chosen and compiled, buffers allocated.
            self.graphs[size] = None
            self.rows.step(*size)
        else:
            graph = self.graphs[size]
            if graph is None:
                graph = self._captured(size)
            if graph is None:
                self.rows.step(rows, length)
            else:
                graph.replay()

    def _captured(self, size: tuple[int, int]) -> torch.cuda.CUDAGraph | None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self.pool):
                self.rows.step(*size)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # A model that asks the host something in every step cannot be captured; it still runs.
            _log.warning("decoding without CUDA graphs, several times slower: %s", str(error).split("\n")[0])
            self.capturable = False
            return None
        self.graphs[size] = graph
        return graph


def rounded_rows(rows: int, most: int) -> int:
    """`most` divided by a power of four, at least 8 (or `most`), and at least `rows`."""
    size = most
    while size // 4 >= max(rows, SMALLEST_ROWS):
        size //= 4
    return size


def rounded_length(length: int, most: int) -> int:
    """128 times a power of two, at least `length`; at most `most`."""
    size = SMALLEST_LENGTH
    while size < length:
        size *= 2
    return min(size, most)
