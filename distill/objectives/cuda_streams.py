"""Parallel CUDA streams for independent work in a captured graph."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


class SideStreams:
    """Side CUDA streams, used only during graph capture; a no-op in eager mode.

    Eager kernels take longer to launch than to run and are autotuned by their run time, which concurrent
    kernels would distort, so parallel streams do not help there.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
        self._streams = [torch.cuda.Stream() for _ in range(count)] if capturing else []
        self._active: set[torch.cuda.Stream] = set()
        self._referenced: tuple[object, ...] = ()

    def fork(self, number: int) -> AbstractContextManager[Any]:
        """Context that runs on stream `number`, after all work issued to the current stream."""
        if not self._streams:
            return nullcontext()
        stream = self._streams[number]
        stream.wait_stream(torch.cuda.current_stream())
        self._active.add(stream)
        return torch.cuda.stream(stream)

    def wait(self, number: int) -> None:
        """Let the current stream wait for the work of stream `number` so far, if there is any."""
        if self._streams and self._streams[number] in self._active:
            torch.cuda.current_stream().wait_stream(self._streams[number])

    def join(self, *references: object) -> None:
        """Wait for all streams; keep `references` to the tensors they read alive until the next `join`."""
        # Waiting for a stream that is not yet part of the capture would be an error.
        for stream in self._active:
            torch.cuda.current_stream().wait_stream(stream)
        self._active.clear()
        self._referenced = references if self._streams else ()
