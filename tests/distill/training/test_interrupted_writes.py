"""A run folder survives a kill before its recipe is in place, and a full disk at any write."""

import errno
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from torch.distributed.checkpoint import FileSystemWriter
from transformers import PreTrainedTokenizerBase

from evalsuite.cli import main
from evalsuite.distill import distill
from evalsuite.distill.recipe import Recipe, write_recipe
from evalsuite.distill.training.run_folder import init_run_dir
from evalsuite.foundation import RunFolderError

FULL = "No space left on device"
KEPT = {".lock", ".metadata"}
"""Hidden files of a folder: its lock, and that of a training state."""


def fail_at(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, error: BaseException, call: int = 1
) -> None:
    """Raise `error` instead of the n-th call of a function; later ones work again."""
    real, calls = getattr(owner, name), []

    def failing(*arguments: Any, **options: Any) -> Any:
        calls.append(name)
        if len(calls) == call:
            raise error
        return real(*arguments, **options)

    monkeypatch.setattr(owner, name, failing)


@pytest.fixture
def recipe(small_recipe: Callable[..., Recipe], teacher_folder: Path, stage: Callable[..., Any]) -> Recipe:
    return small_recipe(teacher_folder, stages=[stage("kd", "kd", tokens=256)])


@pytest.mark.parametrize(
    ("owner", "name"),
    [(tempfile, "mkstemp"), (os, "fsync"), (os, "chmod"), (os, "replace")],
    ids=["before the file", "before it is on disk", "before its mode", "before it is in place"],
)
def test_folder_without_recipe_is_used_by_the_same_command(
    owner: Any, name: str, recipe: Recipe, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    child = os.fork()
    if child == 0:
        # Before anything is computed, so that a fork is safe.
        setattr(owner, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        distill(recipe, out, quiet=True, device="cpu")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not (out / "recipe.yaml").exists()
    try:
        distill(recipe, out, quiet=True, device="cpu")
    except RunFolderError as error:
        pytest.fail(str(error))
    assert {path.name for path in out.rglob(".*")} == KEPT


def test_foreign_hidden_files_are_not_taken_for_ours(recipe: Recipe, tmp_path: Path) -> None:
    for name in (".recipe.yaml.swp", ".bashrc"):
        out = tmp_path / name.strip(".")
        out.mkdir()
        (out / name).write_text("mine")
        with pytest.raises(RunFolderError, match="is not empty"):
            init_run_dir(out, recipe)
        assert (out / name).read_text() == "mine"


def test_refused_folder_stays_as_it_was(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not empty"):
        distill(recipe, tmp_path, quiet=True, device="cpu")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def full_disk() -> OSError:
    return OSError(errno.ENOSPC, FULL, "model.safetensors")


FAILURES: dict[str, tuple[Any, str, BaseException, int]] = {
    "state tensors": (FileSystemWriter, "write_data", full_disk(), 1),
    "metadata of the state": (FileSystemWriter, "finish", full_disk(), 1),
    "tokenizer": (PreTrainedTokenizerBase, "save_pretrained", Exception(f"{FULL} (os error 28)"), 1),
    "tokenizer, by Python": (PreTrainedTokenizerBase, "save_pretrained", full_disk(), 1),
    "recipe": (os, "fsync", full_disk(), 1),
    "any later file": (os, "fsync", full_disk(), 4),
    "checkpoint in place": (os, "replace", full_disk(), 4),
}


@pytest.mark.parametrize("what", [*FAILURES, "weights"])
def test_full_disk_ends_in_one_sentence_and_resumes(
    what: str,
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, out = tmp_path / "recipe.yaml", tmp_path / "out"
    path.write_text(write_recipe(recipe))
    command = ["distill", str(path), "--out", str(out), "--device", "cpu", "--quiet"]
    with monkeypatch.context() as patch:
        if what == "weights":
            error = SafetensorError(f"Error while serializing: I/O error: {FULL} (os error 28)")
            fail_at(patch, __import__("transformers").PreTrainedModel, "save_pretrained", error)
        else:
            fail_at(patch, *FAILURES[what])
        code = main(command)
    said = capsys.readouterr().err
    assert code == RunFolderError.exit_code, said[-600:]
    assert "Traceback" not in said
    assert FULL in said
    assert len(said.strip().splitlines()) == 1
    assert main(command) == 0
    left = [path.name for path in out.rglob(".*") if path.name not in KEPT]
    assert left == []
    assert (out / "gated_deltanet" / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("owner", "name"), [(PreTrainedTokenizerBase, "save_pretrained"), (FileSystemWriter, "write_data")]
)
def test_programming_errors_are_not_taken_for_a_full_disk(
    owner: Any, name: str, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(monkeypatch, owner, name, RuntimeError("shapes differ"))
    with pytest.raises(RuntimeError, match="shapes differ"):
        distill(recipe, tmp_path / "out", quiet=True, device="cpu")


def test_states_are_written_without_waiting_for_a_device(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph that is captured meanwhile would be lost, and with it the state."""
    real = FileSystemWriter.write_data

    def with_device(*arguments: Any, **options: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "is_available", lambda: True)
            patch.setattr(torch.cuda, "current_stream", lambda *_: pytest.fail("reads the device"))
            return real(*arguments, **options)

    monkeypatch.setattr(FileSystemWriter, "write_data", with_device)
    distill(recipe, tmp_path / "out", quiet=True, device="cpu")


def test_leftovers_of_a_kill_are_removed_on_resume(recipe: Recipe, tmp_path: Path) -> None:
    out = tmp_path / "out"
    init_run_dir(out, recipe)
    for name in (
        ".metrics.jsonl.0a1b2c3_",
        "state/.latest.json.0a1b2c3_",
        "state/000001/.state.json.0a1b2c3_",
        "state/000001/__0_0.distcp",
        "state/000001/.metadata.tmp",
        ".gated_deltanet.partial/model.safetensors",
        "checkpoints/gated_deltanet/.kd-128.partial/config.json",
    ):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("half")
    distill(recipe, out, quiet=True, device="cpu")
    assert [path for path in out.rglob(".*") if path.name not in KEPT] == []
