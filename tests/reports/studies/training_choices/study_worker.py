"""A worker of a study for tests: what it does is the first part of a job's name."""

import os
import signal
import time
from multiprocessing.connection import Connection

from evalsuite.executors.gpus import VISIBLE
from evalsuite.reports.studies.training_choices.jobs import Setting
from evalsuite.reports.studies.training_choices.processes import HELD


def work(connection: Connection, setting: Setting) -> None:
    """Reply as `evalsuite.reports.studies.training_choices` does, by the kind of job.

    `die` ends the process, `sleep` waits for SIGTERM, `fail` fails, `meet` waits for another `meet` in
    another process and writes the GPU, `held` belongs to another driver the first time, `lost` until that
    driver has finished it; `early` ends when `late` has, which needs its file.
    """

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
        error = "a reason" if kind == "fail" else ""
        if kind == "meet":
            (setting.out / f"arrived-{job.name}").write_text(os.environ[VISIBLE])
            deadline = time.monotonic() + 60
            while len(list(setting.out.glob("arrived-meet-*"))) < 2 and time.monotonic() < deadline:
                time.sleep(0.05)
        if kind == "early":
            job.done.touch()
            deadline = time.monotonic() + 60
            while not (setting.out / "late").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            error = "" if (setting.out / "late").exists() else "no job started meanwhile"
        if kind in ("held", "lost") and not (tried := setting.out / f"tried-{job.name}").exists():
            tried.touch()
            error = HELD
        if not error or kind == "lost":
            job.done.touch()
        connection.send((job.name, error, 0.5))
