"""Weights are hashed while a process imports what reads them."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from evalsuite.foundation import CheckpointError, write_json
from evalsuite.models.checkpoints import hashing_ahead as module
from evalsuite.models.checkpoints.fingerprint import weights_id
from evalsuite.models.checkpoints.hashing_ahead import hashed, hashing_ahead


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in ("a", "b")]
    for value, folder in enumerate(found):
        folder.mkdir()
        write_json(folder / "config.json", {"model_type": "llama"})
        save_file({"weight": torch.full((3,), value)}, folder / "model.safetensors")
    return found


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What is hashed, in order."""
    found: list[Path] = []

    def recorded(path: Path) -> str:
        found.append(path)
        return weights_id(path)

    monkeypatch.setattr(module, "weights_id", recorded)
    return found


def test_each_is_hashed_once_within_the_context(folders: list[Path], calls: list[Path]) -> None:
    ids = [weights_id(folder) for folder in folders]
    sources = [
        str(folders[0]),
        f"{folders[0]}:weights=int8",
        str(folders[1]),
        "missing",
        "organization/model",
    ]
    with hashing_ahead(sources):
        assert [hashed(folder) for folder in folders] == ids
        assert sorted(calls) == folders
        # Taken once: it may have changed since.
        shutil.copytree(folders[1], folders[0], dirs_exist_ok=True)
        assert hashed(folders[0]) == ids[1]


def test_nothing_is_left_behind_the_context(folders: list[Path], calls: list[Path]) -> None:
    with hashing_ahead(map(str, folders)):
        pass
    assert module._AHEAD == {}
    shutil.copytree(folders[1], folders[0], dirs_exist_ok=True)
    assert hashed(folders[0]) == weights_id(folders[1])


def test_a_broken_checkpoint_is_reported_by_who_asks(folders: list[Path]) -> None:
    (folders[0] / "model.safetensors").write_bytes(b"no weights")
    with hashing_ahead(map(str, folders)):
        with pytest.raises(CheckpointError, match="safetensors"):
            hashed(folders[0])
        assert hashed(folders[1])


def test_an_outer_context_has_begun_already(folders: list[Path], calls: list[Path]) -> None:
    """As a run and its build phase in one process."""
    with hashing_ahead(map(str, folders[:1])):
        with hashing_ahead(map(str, folders)):
            assert [hashed(folder) for folder in folders] == [weights_id(folder) for folder in folders]
        assert sorted(calls) == folders
    assert module._AHEAD == {}
