"""Signals end a command with one line and a distinct exit code, also while its modules load."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from evalsuite.cli import main

ROOT = Path(__file__).resolve().parents[2]

# A shell's background processes ignore SIGINT, and so would the commands below.
DURING_IMPORT = """
import os, runpy, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.{signal})

sys.meta_path.insert(0, Interrupt())
sys.argv = ["evalsuite", "show", "mixers"]
runpy.run_module("evalsuite", run_name="__main__")
"""


def run(code: str, folder: Path) -> tuple[int, list[str]]:
    """Return exit code and lines of stderr of a Python process."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stderr.strip().splitlines()


@pytest.mark.parametrize("module", ["evalsuite.cli.entry", "argparse", "evalsuite.foundation"])
@pytest.mark.parametrize(
    ("name", "code", "word"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")]
)
def test_a_signal_while_modules_load_is_one_line(
    module: str, name: str, code: int, word: str, tmp_path: Path
) -> None:
    assert run(DURING_IMPORT.format(module=module, signal=name), tmp_path) == (code, [f"evalsuite: {word}"])


COMMANDS = {
    "run": ("evalsuite.evaluation", "evaluate", ["run", "s", "--teacher", "t", "--out", "o"]),
    "gate": ("evalsuite.cli.commands.gate", "read_inputs", ["gate", "r", "--min-recovery", "0.9"]),
    "compare": ("evalsuite.evaluation", "evaluate", ["compare", "t", "--suite", "s", "--out", "o"]),
    "distill": ("evalsuite.distill", "load_recipe", ["distill", "recipe", "--out", "o"]),
}


@pytest.mark.parametrize("verb", COMMANDS)
@pytest.mark.parametrize(
    ("name", "code", "word"), [("SIGINT", 130, "interrupted"), ("SIGTERM", 143, "terminated")]
)
def test_a_signal_ends_a_command_with_one_line(
    verb: str,
    name: str,
    code: int,
    word: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module, function, argv = COMMANDS[verb]

    def work(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.Signals[name])
        time.sleep(30)

    monkeypatch.setattr(f"{module}.{function}", work)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(argv) == code
    finally:
        signal.signal(signal.SIGINT, before)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"evalsuite {verb}: {word}")
    assert ("repeat the command to resume" in line) == (verb in ("run", "distill"))


def test_main_restores_the_handler_of_its_caller() -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert main(["gate", "no-such-run", "--min-recovery", "0.9"]) >= 64
    assert signal.getsignal(signal.SIGTERM) is before
