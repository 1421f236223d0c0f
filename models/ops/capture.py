"""Capture of CUDA graphs."""

from collections.abc import Callable
from typing import Any

import torch


def capture(launch: Callable[[], None], pool: Any = None) -> torch.cuda.CUDAGraph:
    """Record what `launch` launches on the current device, without running it.

    Args:
        pool: memory that graphs share, of `torch.cuda.graph_pool_handle`; None: the graph has its own.

    Raises:
        RuntimeError: `launch` waits for the device, or does what else cannot be recorded.
    """
    graph = torch.cuda.CUDAGraph()
    # Threads that prefetch batches or write states use the device meanwhile: any other mode lets them fail,
    # and the capture with them.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        launch()
    return graph
