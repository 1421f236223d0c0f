"""Tasks for the tests of worker processes; they import nothing that takes long."""

import os
import signal

from evalsuite.foundation import DataError


class Tasks:
    """A preparation for `WorkerPool` whose methods show where and how often they run."""

    def square(self, number: int) -> tuple[int, int]:
        return number * number, os.getpid()

    def refuse(self, number: int) -> None:
        raise DataError(f"row {number} is damaged")

    def die_once(self, number: int, folder: str) -> int:
        """Kill the process that computes number 5 for the first time."""
        if number == 5:
            try:
                os.mkdir(f"{folder}/died")
            except FileExistsError:
                return number
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    def die(self, number: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
