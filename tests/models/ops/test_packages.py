"""The versions of fla and triton are known without importing fla, which takes seconds."""

import importlib
import sys
import threading
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evalsuite.models.ops import packages


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder in which a test writes fla and triton."""
    for name in [each for each in sys.modules if each.split(".")[0] in ("fla", "triton")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("fla", "triton"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text('raise ImportError("it was imported")\n')
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    packages.package_versions.cache_clear()
    yield tmp_path
    packages.package_versions.cache_clear()


def state(folder: Path, text: str) -> None:
    with (folder / "__init__.py").open("a") as file:
        file.write(text)


def test_the_files_state_them(folder: Path) -> None:
    state(folder / "fla", '__version__ = "0.6.0"\n__all__ = []\n')
    state(folder / "triton", '"""A version."""\n__version__ = \'3.7.1\'\n')
    assert packages.version() == "flash-linear-attention 0.6.0, triton 3.7.1"


def test_an_imported_package_states_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state(folder / "triton", "__version__ = '3.7.1'\n")
    state(folder / "fla", "__version__ = '1'\n")
    imported = ModuleType("fla")
    imported.__version__ = "2.0+local"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fla", imported)
    assert packages.version() == "flash-linear-attention 2.0+local, triton 3.7.1"


def test_metadata_states_the_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state(folder / "triton", "__version__ = '3.7.1'\n")
    known = {"flash-linear-attention": "0.7"}

    def version(name: str) -> str:
        if name not in known:
            raise PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr("importlib.metadata.version", version)
    assert packages.version() == "flash-linear-attention 0.7, triton 3.7.1"


@pytest.mark.parametrize("error", [None, OSError])
def test_triton_hashes_its_files_in_the_background(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception] | None
) -> None:
    hashed: list[str] = []

    def triton_key() -> None:
        hashed.append(threading.current_thread().name)
        if error is not None:
            raise error

    for name in ("triton", "triton.runtime", "triton.runtime.cache"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["triton.runtime.cache"].triton_key = triton_key  # type: ignore[attr-defined]
    failed: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    packages.hash_triton_ahead()
    for thread in threading.enumerate():
        if thread.name == "triton":
            thread.join()
    assert hashed == ["triton"]
    assert not failed
