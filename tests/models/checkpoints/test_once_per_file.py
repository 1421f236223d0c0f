"""What is derived from files lasts until one of them changes, in a process and in the user's cache."""

import os
import time
from pathlib import Path

import pytest

from evalsuite.models.checkpoints.fingerprint import source_hash
from evalsuite.models.checkpoints.once_per_file import kept_on_disk


def write(file: Path, text: str, *, age: float = 60.0) -> None:
    file.write_text(text)
    os.utime(file, (time.time() - age,) * 2)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVALSUITE_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "code.py", "a = 1\n")
    return tmp_path / "code.py"


def derived(file: Path, calls: list[str]) -> str:
    def derive() -> str:
        calls.append(file.read_text())
        return f"of {file.read_text()}"

    return kept_on_disk("source", [file], derive)


def test_a_text_is_derived_once_until_a_file_changes(file: Path, tmp_path: Path) -> None:
    calls: list[str] = []
    assert [derived(file, calls) for _ in range(3)] == ["of a = 1\n"] * 3
    # Of the same length.
    write(file, "a = 2\n", age=30.0)
    assert [derived(file, calls) for _ in range(2)] == ["of a = 2\n"] * 2
    assert calls == ["a = 1\n", "a = 2\n"]
    assert len(list((tmp_path / "cache/source").iterdir())) == 2


def test_a_file_that_has_just_changed_is_not_trusted(file: Path) -> None:
    """A second change can have the same time."""
    calls: list[str] = []
    write(file, "a = 1\n", age=0.0)
    for _ in range(2):
        derived(file, calls)
    assert len(calls) == 2


@pytest.mark.parametrize("cache", ["", "code.py"])
def test_without_a_cache_each_process_derives(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    """Where the user has none, or it cannot be written."""
    monkeypatch.setenv("EVALSUITE_CACHE", cache and str(tmp_path / cache))
    calls: list[str] = []
    for _ in range(2):
        derived(file, calls)
    assert len(calls) == 2


def test_the_hash_of_source_code_is_kept(file: Path, tmp_path: Path) -> None:
    first = source_hash(file.name, root=tmp_path)
    (kept,) = (tmp_path / "cache/source").iterdir()
    assert kept.read_text() == first
    kept.write_text("0" * 16)
    source_hash.cache_clear()
    assert source_hash(file.name, root=tmp_path) == "0" * 16
    write(file, "a = 3\n")
    source_hash.cache_clear()
    assert source_hash(file.name, root=tmp_path) not in {first, "0" * 16}
