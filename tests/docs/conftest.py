"""The documentation, built once for all workers as `make docs` builds it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evalsuite.foundation.files import locked

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the built site; a broken link fails the build."""
    pytest.importorskip("material", reason="needs the extra docs")
    # With several workers their parent folder is that of the session.
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "site"
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            building = folder.with_suffix(".building")
            built = subprocess.run(
                [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(building)],
                cwd=ROOT,
                env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
                capture_output=True,
                text=True,
            )
            assert built.returncode == 0, built.stderr
            building.rename(folder)
    return folder
