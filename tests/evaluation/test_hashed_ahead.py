"""A run hashes weights while it imports: those that are new to it, and the first that it runs itself."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from evalsuite.config import RunConfig
from evalsuite.evaluation.run import _hashed_here
from evalsuite.models.checkpoints import hashing_ahead as module
from evalsuite.models.checkpoints.fingerprint import weights_id
from tests.evaluation.runs import evaluate_quietly


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Folder and thread of each hash."""
    found: list[tuple[str, str]] = []

    def recorded(path: Path) -> str:
        found.append((path.name, threading.current_thread().name.split("-")[0]))
        return weights_id(path)

    monkeypatch.setattr(module, "weights_id", recorded)
    return found


def test_checkpoints_that_are_new_to_a_run_are_hashed_first(
    make_llama: Callable[[Path, int], Path],
    suite: Path,
    tmp_path: Path,
    hashed: list[tuple[str, str]],
) -> None:
    """Then a second time by the engine that loads them: they may have changed since."""
    first, *others = (make_llama(tmp_path / name, seed) for seed, name in enumerate("abc"))
    run = tmp_path / "run"
    evaluate_quietly(suite=str(suite), checkpoints=[str(first)], out=run, phases=("build",))
    assert hashed == [("a", "hash")]
    hashed.clear()
    evaluate_quietly(
        checkpoints=[str(each) for each in (first, *others)], out=run, phases=("infer",), device="cpu"
    )
    assert sorted(hashed[:2]) == [("b", "hash"), ("c", "hash")]
    assert sorted(name for name, _ in hashed) == ["a", "b", "b", "c", "c"]


def test_a_checkpoint_that_changes_between_two_runs_is_hashed_again(
    make_llama: Callable[[Path, int], Path],
    suite: Path,
    tmp_path: Path,
    hashed: list[tuple[str, str]],
) -> None:
    old, new = (make_llama(tmp_path / name, seed) for seed, name in enumerate("ab"))
    for number in range(2):
        evaluate_quietly(
            suite=str(suite), checkpoints=[str(old)], out=tmp_path / str(number), phases=("build",)
        )
        shutil.copytree(new, old, dirs_exist_ok=True)
    assert hashed == [("a", "hash"), ("a", "hash")]
    manifests = [(tmp_path / name / "run.json").read_text() for name in "01"]
    assert weights_id(new) not in manifests[0]
    assert weights_id(new) in manifests[1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["a"]),
        ({"teacher": "t"}, ["t"]),
        ({"engine": "vllm"}, []),
        ({"executor": "local", "executor_args": {"num_workers": 2}}, []),
        ({"phases": ("infer",), "suite": None}, ["a", "b"]),
    ],
)
def test_only_what_this_process_reads_is_hashed_here(
    tmp_path: Path, options: dict[str, object], expected: list[str]
) -> None:
    settings = {"suite": "quick", "checkpoints": ("a", "b"), **options}
    config = RunConfig(out=tmp_path / "run", **settings)  # type: ignore[arg-type]
    assert list(_hashed_here(config, ["a", "b"])) == expected
