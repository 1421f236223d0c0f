"""Samples the main thread's stack: of the process that is started with STACK_SAMPLES, not of its children."""

import os
import sys
import threading
import time

INTERVAL = 0.2
"""Seconds between two samples."""


def _sample(path: str) -> None:
    main, started = threading.main_thread().ident, time.perf_counter()
    with open(path, "w") as file:
        while True:
            time.sleep(INTERVAL)
            frame, rows = sys._current_frames().get(main or 0), []
            while frame is not None:
                rows.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")
                frame = frame.f_back
            print(f"{time.perf_counter() - started:.2f}", *rows, sep="\t", file=file, flush=True)


if _path := os.environ.pop("STACK_SAMPLES", None):
    threading.Thread(target=_sample, args=(_path,), daemon=True).start()
