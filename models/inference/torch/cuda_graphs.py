"""Decode steps through CUDA graphs: a step is captured once and then replayed.

A step of a small model consists of over a thousand tiny kernels, and launching them from Python takes several
times as long as running them. A captured step has fixed shapes, so batch sizes and lengths are rounded up to
a few values; each shape is captured on its second use.
"""

import logging

import torch

from evalsuite.models.inference.torch.scheduler import DecodeBatch, StepFunction
from evalsuite.models.ops.capture import capture

_log = logging.getLogger(__name__)

MIN_LENGTH = 128
MIN_NUM_SEQS = 8


def step_function(batch: DecodeBatch) -> StepFunction:
    """How to step a batch: through CUDA graphs on a GPU."""
    return CudaGraphStep(batch).step if batch.runner.device.type == "cuda" else batch.step


class CudaGraphStep:
    """Captures and replays the decode step of one batch, one graph per rounded shape."""

    def __init__(self, batch: DecodeBatch) -> None:
        self.batch = batch
        self.graphs: dict[tuple[int, int], torch.cuda.CUDAGraph | None] = {}
        self.pool = torch.cuda.graph_pool_handle()
        self.capturable = True

    def step(self, num_seqs: int, length: int) -> None:
        """Replay a captured step whose batch and key length are rounded up; padding outputs are ignored."""
        capacity = self.batch.cache.capacity
        # Without masks the cost of a step follows from the positions alone.
        rounded = round_up_length(length, capacity) if self.batch.needs_masks else capacity
        size = round_up_num_seqs(num_seqs, self.batch.cache.num_slots), rounded
        if not self.capturable:
            self.batch.step(num_seqs, length)
        elif size not in self.graphs:
            # The first step of a shape runs eagerly: kernels are selected and compiled, buffers allocated.
            self.graphs[size] = None
            self.batch.step(*size)
        else:
            graph = self.graphs[size]
            if graph is None:
                graph = self._capture(size)
            if graph is None:
                self.batch.step(num_seqs, length)
            else:
                graph.replay()

    def _capture(self, size: tuple[int, int]) -> torch.cuda.CUDAGraph | None:
        try:
            graph = capture(lambda: self.batch.step(*size), self.pool)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            # A model with a host synchronization in its forward pass cannot be captured; run it eagerly.
            _log.warning("decoding without CUDA graphs, several times slower: %s", str(error).split("\n")[0])
            self.capturable = False
            return None
        self.graphs[size] = graph
        return graph


def round_up_num_seqs(num_seqs: int, maximum: int) -> int:
    """`maximum` divided by a power of four, at least 8 (or `maximum`), and at least `num_seqs`."""
    size = maximum
    while size // 4 >= max(num_seqs, MIN_NUM_SEQS):
        size //= 4
    return size


def round_up_length(length: int, maximum: int) -> int:
    """128 times a power of two, at least `length`; at most `maximum`."""
    size = MIN_LENGTH
    while size < length:
        size *= 2
    return min(size, maximum)
