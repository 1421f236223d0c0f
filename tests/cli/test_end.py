"""A command's process ends at once, but not before its threads and exit handlers."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CODE = """
import atexit, sys, threading, time
import evalsuite.cli

class Freed:
    def __del__(self):
        print("freed")

def main():
    sys.modules["freed"] = Freed()
    atexit.register(print, "handler")
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
    print("main", end=" ")
    {end}

evalsuite.cli.main = main
sys.exit(evalsuite.cli.run())
"""


@pytest.mark.parametrize(
    ("end", "code", "printed"),
    [
        ("return 3", 3, ["main", "thread", "handler"]),
        ("return 0", 0, ["main", "thread", "handler"]),
        # Such as that of a usage error.
        ("sys.exit(64)", 64, ["main", "thread", "handler", "freed"]),
    ],
)
def test_threads_and_handlers_end_before_the_process(end: str, code: int, printed: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(end=end)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (code, printed, "")
