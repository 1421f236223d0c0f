"""Execution of generated code in a process with limited time, memory and disk, and without network.

This prevents accidents, not attacks. It is used only if the user enables it.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ALLOW = "EVALSUITE_RUN_CODE"
"""Environment variable that, set to 1, allows benchmarks to execute generated code."""

WHY = f"it executes generated code; set {ALLOW}=1 to allow that"
"""Why a benchmark that executes code is left out."""

SECONDS = 5.0
MEMORY = 1 << 30
FILE = 1 << 20
_CHILD = Path(__file__).with_name("sandbox_child.py")


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """Whether a program finished without an error, and otherwise the last line of its stderr."""

    passed: bool
    message: str


def allowed() -> bool:
    """Return whether the user allows generated code."""
    return os.environ.get(ALLOW) == "1"


def run_limited(
    program: str, *, seconds: float = SECONDS, memory: int = MEMORY, file: int = FILE
) -> ExecutionResult:
    """Run a Python program in an empty temporary folder.

    Args:
        program: source code.
        seconds: limit of wall time and processor time.
        memory: limit of address space in bytes.
        file: limit of file size in bytes.

    Returns:
        Whether it passed: it exited by itself without an error.
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
            return ExecutionResult(False, f"took longer than {seconds:g} s")
    if done.returncode == 0:
        return ExecutionResult(True, "")
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return ExecutionResult(False, (lines[-1] if lines else f"exit code {done.returncode}")[:300])
