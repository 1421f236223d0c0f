"""SIGTERM and Ctrl-C during training: save what is complete, and end within `GRACE_SECONDS`."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

GRACE_SECONDS = 8.0
"""Seconds after a signal in which the step in progress can end and be saved."""
EXIT_SECONDS = 2.0
"""Seconds that an interrupted process has to end once everything is saved."""


def end_process_after(seconds: float, code: int) -> None:
    """End this process if it has not ended by itself, as when a data worker that is joined at exit hangs."""
    timer = threading.Timer(seconds, os._exit, (code,))
    timer.daemon = True
    timer.start()


class StopSignals:
    """Collects signals in a `with` block.

    A signal sets `requested`, so that the training loop stops after its step. Where the loop waits
    (`interruptible`), it raises KeyboardInterrupt at once. A process that is still in the block after
    `GRACE_SECONDS`, such as in a compiler that cannot be interrupted, is ended; a state that is being written
    (`saving`) is completed first.

    Args:
        single: this is the only process of the run; several of them stop after the same step.
    """

    def __init__(self, *, single: bool = True) -> None:
        self._single = single
        self._received: list[int] = []
        self._interruptible = False
        self._saving = False
        self._done = threading.Event()
        self._previous: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal was received."""
        return bool(self._received)

    def raise_interrupt(self) -> None:
        """Raise KeyboardInterrupt with the first signal as its argument."""
        raise KeyboardInterrupt(*self._received[:1])

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Within this context a signal raises KeyboardInterrupt at once, also one received before."""
        self._interruptible = self._single
        try:
            if self._interruptible and self._received:
                self.raise_interrupt()
            yield
        finally:
            self._interruptible = False

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Within this context the process is not ended."""
        self._saving = True
        try:
            yield
        finally:
            self._saving = False

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is not threading.main_thread():
            # Only the main thread can handle signals; elsewhere, a stop loses the unsaved steps.
            return self
        self._previous = {
            number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT)
        }
        # Python runs handlers between bytecodes of the main thread only; the number of a signal is written to
        # this socket at once.
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(self._reader,), daemon=True, name="stop signals").start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._done.set()
        if self._previous:
            signal.set_wakeup_fd(self._previous_fd)
            for number, handler in self._previous.items():
                signal.signal(number, handler)
            self._writer.close()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        repeated = bool(self._received)
        self._received.append(number)
        if self._interruptible or (repeated and number == signal.SIGINT):
            self._interruptible = False
            self.raise_interrupt()

    def _watch(self, reader: socket.socket) -> None:
        """End the process if it is still in the block `GRACE_SECONDS` after a signal."""
        with reader:
            while (received := reader.recv(1)) and received[0] not in (signal.SIGTERM, signal.SIGINT):
                pass
        while received and not self._done.wait(GRACE_SECONDS):
            if not self._saving:
                print(
                    f"evalsuite: ended {GRACE_SECONDS:g} s after a signal, in the middle of a step; the "
                    "state that was saved last remains; repeat the command to resume",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(128 + received[0])
