"""Running what a model wrote: a process of its own with little time, memory and disk, and no network.

This stops accidents, not an attacker. It is used only where a user has asked for it by name.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ALLOW = "EVALSUITE_RUN_CODE"
"""Environment variable that, set to 1, lets benchmarks run code that models write."""

WHY = f"it runs code that models write; set {ALLOW}=1 to allow that"
"""Why a benchmark that needs this is left out."""

SECONDS = 5.0
MEMORY = 1 << 30
FILE = 1 << 20
_CHILD = Path(__file__).with_name("sandbox_child.py")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a program ran to its end, and otherwise the last line of what it said."""

    passed: bool
    message: str


def allowed() -> bool:
    """Whether the user lets benchmarks run code."""
    return os.environ.get(ALLOW) == "1"


def run_limited(program: str, *, seconds: float = SECONDS, memory: int = MEMORY, file: int = FILE) -> Outcome:
    """Run a Python program in an empty folder that is thrown away.

    Args:
        program: its source.
        seconds: of wall and processor time.
        memory: bytes of address space.
        file: largest file in bytes.

    Returns:
        Passed if it ended by itself without an error.
    """
    with TemporaryDirectory(prefix="evalsuite-code-") as folder:
        limits = [str(int(value)) for value in (seconds + 1, memory, file)]
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", str(_CHILD), *limits],
                input=program.encode(),
                cwd=folder,
                env={"PATH": os.defpath, "HOME": folder, "TMPDIR": folder, "PYTHONHASHSEED": "0"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=seconds,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return Outcome(False, f"took longer than {seconds:g} s")
    if done.returncode == 0:
        return Outcome(True, "")
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return Outcome(False, (said[-1] if said else f"ended with {done.returncode}")[:300])
