"""CUDA streams side by side in a captured graph, for work of which neither part waits for the other."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any

import torch


class Lanes:
    """CUDA streams beside the current one while a graph is captured; elsewhere none.

    Eager kernels are launched more slowly than they run, and are tuned by their time, which neighbours
    would disturb: side by side they would gain nothing.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        self._streams = [torch.cuda.Stream() for _ in range(count)] if capturing else []
        self._busy: set[torch.cuda.Stream] = set()
        self._kept: dict[str, Any] = {}

    def beside(self, number: int) -> AbstractContextManager[Any]:
        """Run what follows on lane `number`, after all that the current stream holds."""
        if not self._streams:
            return nullcontext()
        stream = self._streams[number]
        stream.wait_stream(torch.cuda.current_stream())
        self._busy.add(stream)
        return torch.cuda.stream(stream)

    def join(self, kept: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Wait for all lanes; hold on to the tensors that they read from here to the next `join`."""
        # A stream that has not yet taken part in the capture must not be waited for.
        for stream in self._busy:
            torch.cuda.current_stream().wait_stream(stream)
        self._busy.clear()
        self._kept = dict(kept) if self._streams else {}
