"""Jobs that count, for executors: what they send and return is known, and some kill their worker."""

import os
import platform
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalsuite.executors import Channel
from evalsuite.foundation import DataError


@dataclass(frozen=True)
class CountJob:
    """Sends the numbers up to `count` and returns their sum."""

    name: str
    count: int
    group: str = "one"
    gpus: int | None = 0
    killed: Path | None = None
    """The first worker that runs it dies in the middle, and leaves this file."""
    always: bool = False
    error: bool = False
    prepared: list[int] = field(default_factory=list, compare=False)
    """Grows with every `prepare`."""

    def __str__(self) -> str:
        return self.name

    @property
    def cost(self) -> float:
        return float(self.count)

    def prepare(self) -> dict[str, Any]:
        self.prepared.append(self.count)
        killed = None if self.killed is None else str(self.killed)
        return {
            "name": self.name,
            "group": self.group,
            "count": self.count,
            "killed": killed,
            "always": self.always,
            "error": self.error,
        }


class CountWorker:
    """Counts groups that it has loaded, as a worker loads checkpoints."""

    def __init__(self) -> None:
        self.loaded: list[str] = []

    def run(self, prepared: Mapping[str, Any], channel: Channel) -> dict[str, Any]:
        """Send numbers, and return their sum."""
        if not self.loaded or self.loaded[-1] != prepared["group"]:
            self.loaded.append(prepared["group"])
        for number in range(1, prepared["count"] + 1):
            channel.send({"name": prepared["name"], "number": number})
            if prepared["killed"] and 2 * number > prepared["count"]:
                place = Path(prepared["killed"])
                if prepared["always"] or not place.exists():
                    place.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
        if prepared["error"]:
            raise DataError(f"{prepared['name']}: not countable")
        total = sum(range(1, prepared["count"] + 1))
        return {
            "sum": total,
            "loaded": len(self.loaded),
            "host": platform.node(),
            "process": os.getpid(),
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        }

    def close(self) -> None:
        """Nothing is held."""


def note_process(folder: Path, fail: bool = False) -> None:
    """Leave a file that is named after this process, as a warm-up."""
    (folder / str(os.getpid())).touch()
    if fail:
        raise ImportError("not installed")


class Messages:
    """A channel that keeps what arrives."""

    def __init__(self) -> None:
        self.found: list[Mapping[str, Any]] = []

    def send(self, message: Mapping[str, Any]) -> None:
        """Keep a message."""
        self.found.append(message)

    def set_description(self, desc: str) -> None:
        """Ignored."""

    def numbers(self, name: str) -> list[int]:
        """Return what a job has sent, in order."""
        return [each["number"] for each in self.found if each["name"] == name]
