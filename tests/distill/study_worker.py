"""A worker of a study for tests: what it does is the first part of a job's name."""

import os
import signal
import time
from multiprocessing.connection import Connection

from evalsuite.study import Setting


def work(connection: Connection, setting: Setting) -> None:
    """Reply as `evalsuite.study` does; `die` ends the process, `sleep` waits for SIGTERM, `fail` fails."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    while (job := connection.recv()) is not None:
        kind = job.name.partition("-")[0]
        if kind == "die":
            os._exit(3)
        if kind == "sleep":
            try:
                (setting.out / "asleep").touch()
                time.sleep(60)
            except KeyboardInterrupt:
                (setting.out / "stopped").touch()
                return
        if kind != "fail":
            job.done.touch()
        connection.send((job.name, "a reason" if kind == "fail" else "", 0.5))
