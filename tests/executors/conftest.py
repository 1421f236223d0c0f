"""Workers in other processes import `counting` as a module."""

import os
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put this folder on the path of processes that a test starts."""
    here = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    known = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", here if known is None else f"{here}{os.pathsep}{known}")


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for results of SLURM jobs more often than a cluster needs."""
    monkeypatch.setattr("evalsuite.executors.slurm.POLL_SECONDS", 0.05)
