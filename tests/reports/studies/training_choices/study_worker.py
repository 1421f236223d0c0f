"""A worker of a study for tests: what it does is the first part of a job's name."""

import os
import signal
import sys
import threading
import time
from typing import Any

from evalsuite.executors.base import Channel
from evalsuite.executors.gpus import VISIBLE
from evalsuite.reports.studies.training_choices.jobs import Job, Setting
from evalsuite.reports.studies.training_choices.processes import HELD


class KindWorker:
    """Ends jobs as `StudyWorker` does, by their kind.

    `die` ends the process, `hang` fails in one whose thread goes on, `sleep` waits for SIGTERM, `fail`
    fails, `meet` waits for another `meet` in another process and writes the GPU, `held` belongs to another
    driver the first time, `lost` until that driver has finished it; `early` ends when `late` has, which
    needs its file.
    """

    def __init__(self, setting: Setting) -> None:
        def stop(number: int, frame: object) -> None:
            raise KeyboardInterrupt

        self._out = setting.out
        signal.signal(signal.SIGTERM, stop)

    def run(self, job: Job, channel: Channel) -> dict[str, Any]:
        """Run a job, and touch its file if it ends well."""
        kind, out = job.name.partition("-")[0], self._out
        if kind == "die":
            os._exit(3)
        if kind == "hang":
            threading.Thread(target=time.sleep, args=(600,)).start()
            sys.exit(4)
        if kind == "sleep":
            try:
                (out / "asleep").touch()
                time.sleep(60)
            except KeyboardInterrupt:
                (out / "stopped").touch()
                sys.exit()
        error = "a reason" if kind == "fail" else ""
        if kind == "meet":
            (out / f"arrived-{job.name}").write_text(os.environ[VISIBLE])
            deadline = time.monotonic() + 60
            while len(list(out.glob("arrived-meet-*"))) < 2 and time.monotonic() < deadline:
                time.sleep(0.05)
        if kind == "early":
            job.done.touch()
            deadline = time.monotonic() + 60
            while not (out / "late").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            error = "" if (out / "late").exists() else "no job started meanwhile"
        if kind in ("held", "lost") and not (tried := out / f"tried-{job.name}").exists():
            tried.touch()
            error = HELD
        if not error or kind == "lost":
            job.done.touch()
        return {"error": error, "seconds": 0.5}

    def close(self) -> None:
        """Nothing is held."""
