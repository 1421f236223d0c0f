"""The Triton kernels under Triton's interpreter, so that their arithmetic is tested without a GPU."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


def test_kernels_under_the_interpreter() -> None:
    """In a process of its own: triton reads TRITON_INTERPRET when a kernel is defined."""
    root = Path(__file__).resolve().parents[3]
    folder = Path(__file__).parent
    # The others need a device.
    kernels = [str(path) for path in folder.rglob("test_*.py") if "NEEDS_DEVICE\n" in path.read_text()]
    shown = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "gpu", *kernels],
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode == 0, shown.stdout[-5000:] + shown.stderr[-2000:]
    assert " passed" in shown.stdout
    assert " failed" not in shown.stdout
