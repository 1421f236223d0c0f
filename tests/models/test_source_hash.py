"""Responses do not survive a change of our own mathematics, and do survive one of its prose."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalsuite.models import build_student
from evalsuite.models.checkpoints.load import Checkpoint
from evalsuite.models.inference.torch.engine import TorchEngine

ROOT = Path(importlib.import_module("evalsuite.models").__file__ or "").parent

CODE = '''
"""Module."""


def decay(x: float, *, scale: float = 2.0) -> float:
    """Decay of a state."""
    # Halve it.
    return x / scale
'''
SAME = {
    "docstring": CODE.replace("Decay of a state.", "The decay."),
    "no docstring": CODE.replace('    """Decay of a state."""\n', ""),
    "comment": CODE.replace("# Halve it.", "# Cut in two."),
    "layout": CODE.replace("x: float, *, scale: float = 2.0", "x: float,\n *, scale: float = 2.00"),
}
OTHER = {
    "operator": CODE.replace("x / scale", "x * scale"),
    "default": CODE.replace("2.0", "2.5"),
    "name": CODE.replace("decay", "forget"),
    "string": CODE.replace("return x / scale", "return x / float('2')"),
}


@pytest.fixture
def source_hash() -> Callable[..., str]:
    fingerprint = importlib.import_module("evalsuite.models.checkpoints.fingerprint")
    assert hasattr(fingerprint, "source_hash"), "the fingerprint does not cover the source"
    found: Callable[..., str] = fingerprint.source_hash
    return found


def write(folder: Path, text: str) -> Path:
    (folder / "mixers").mkdir(parents=True, exist_ok=True)
    (folder / "mixers" / "gla.py").write_text(text)
    (folder / "stopping.py").write_text("LIMIT = 1\n")
    return folder


def test_hash_ignores_prose_and_layout(source_hash: Callable[..., str], tmp_path: Path) -> None:
    first = source_hash("mixers", "stopping.py", root=write(tmp_path / "first", CODE))
    for name, text in SAME.items():
        found = source_hash("mixers", "stopping.py", root=write(tmp_path / f"same {name}", text))
        assert found == first, name


def test_hash_follows_code(source_hash: Callable[..., str], tmp_path: Path) -> None:
    hashes = {source_hash("mixers", "stopping.py", root=write(tmp_path / "first", CODE))}
    for name, text in OTHER.items():
        hashes.add(source_hash("mixers", "stopping.py", root=write(tmp_path / f"other {name}", text)))
    moved = write(tmp_path / "moved", CODE)
    (moved / "mixers" / "gla.py").rename(moved / "mixers" / "metala.py")
    hashes.add(source_hash("mixers", "stopping.py", root=moved))
    assert len(hashes) == len(OTHER) + 2


def test_hash_is_that_of_every_supported_python(source_hash: Callable[..., str], tmp_path: Path) -> None:
    """ast.dump differs between versions of Python; the hash must not."""
    assert source_hash("mixers", "stopping.py", root=write(tmp_path, CODE)) == "38304ba1c3c9787d"


def engine(make_teacher: Callable[..., Any], mixers: str | None) -> TorchEngine:
    class Tokenizer:
        eos_token_id = None

    model = make_teacher()
    model = model if mixers is None else build_student(model, mixers)
    return TorchEngine(Checkpoint("x", "x", model, Tokenizer(), "0" * 16))


def changed_file(path: Path) -> str:
    """The text of a module with another statement at its end."""
    return path.read_text() + "\nCHANGED = 1\n"


@pytest.mark.parametrize(
    ("file", "affects"),
    [
        pytest.param("mixers/gla.py", {"student"}, marks=pytest.mark.long),
        pytest.param("ops/recurrence/chunked.py", {"student"}, marks=pytest.mark.long),
        pytest.param("decoder/model.py", {"student"}, marks=pytest.mark.long),
        pytest.param("ops/short_conv/__init__.py", {"student"}, marks=pytest.mark.long),
        pytest.param("ops/rms_norm/__init__.py", {"student", "teacher"}, marks=pytest.mark.long),
        ("inference/torch/model_runner.py", {"student", "teacher"}),
        pytest.param("inference/stopping.py", {"student", "teacher"}, marks=pytest.mark.long),
        pytest.param("inference/token_times.py", set(), marks=pytest.mark.long),
        pytest.param("inference/torch/benchmark.py", set(), marks=pytest.mark.long),
    ],
)
def test_fingerprint_covers_the_source_that_computes(
    file: str, affects: set[str], make_teacher: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fingerprints() -> dict[str, str]:
        fingerprint = importlib.import_module("evalsuite.models.checkpoints.fingerprint")
        if hasattr(fingerprint, "source_hash"):
            fingerprint.source_hash.cache_clear()
        made = {"teacher": engine(make_teacher, None), "student": engine(make_teacher, "gla")}
        return {name: each.fingerprint for name, each in made.items()}

    before = fingerprints()
    read_text, target = Path.read_text, ROOT / file
    changed = changed_file(target)
    monkeypatch.setattr(
        Path, "read_text", lambda self, *a, **k: changed if self == target else read_text(self, *a, **k)
    )
    now = fingerprints()
    monkeypatch.undo()
    assert {name for name in before if before[name] != now[name]} == affects
    assert fingerprints() == before
