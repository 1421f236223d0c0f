"""A process ends at once, but not before its threads and exit handlers."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

CODE = """
import atexit, sys, threading, time
from evalsuite.foundation.process_end import end_quickly

class Freed:
    def __del__(self):
        print("freed")

def main():
    sys.modules["freed"] = Freed()
    atexit.register(print, "handler")
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
    print("main", end=" ")
    {end}

codes = []
end_quickly(codes)
codes.append(main())
sys.exit(codes[0])
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


@pytest.mark.parametrize(
    ("redirection", "code"),
    [(">&-", 0), (">&- 2>&-", 0), ("<&- >&- 2>&-", 0), ("| true", 74), ("> /dev/full", 73)],
)
def test_a_command_without_stdout_ends_with_its_exit_code(redirection: str, code: int) -> None:
    """A closed stream hides the text, not the verdict; what cannot be written is an error."""
    command = f"{sys.executable} -m evalsuite show suites {redirection}"
    script = f"{command}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert done.returncode == code


def test_the_command_line_ends_so() -> None:
    code = """
import atexit, sys
import evalsuite.cli, evalsuite.cli.entry

class Freed:
    def __del__(self):
        print("freed")

def main(argv):
    sys.modules["freed"] = Freed()
    atexit.register(print, "handler")
    return 3

evalsuite.cli.entry.main = main
sys.exit(evalsuite.cli.run())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (3, ["handler"], "")
