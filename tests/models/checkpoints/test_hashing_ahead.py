"""Weights are hashed while a process imports what reads them."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from evalsuite.foundation import CheckpointError, write_json
from evalsuite.models.checkpoints import fingerprint
from evalsuite.models.checkpoints.fingerprint import hashing_ahead, weights_id


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in ("a", "b")]
    for value, folder in enumerate(found):
        folder.mkdir()
        write_json(folder / "config.json", {"model_type": "llama"})
        save_file({"weight": torch.full((3,), value)}, folder / "model.safetensors")
    return found


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What is hashed, in order."""
    found: list[Path] = []
    hash_path = fingerprint._hash

    def recorded(path: Path) -> str:
        found.append(path)
        return hash_path(path)

    monkeypatch.setattr(fingerprint, "_hash", recorded)
    return found


def test_each_is_hashed_once_within_the_context(folders: list[Path], hashed: list[Path]) -> None:
    ids = [weights_id(folder) for folder in folders]
    hashed.clear()
    sources = [
        str(folders[0]),
        f"{folders[0]}:weights=int8",
        str(folders[1]),
        "missing",
        "organization/model",
    ]
    with hashing_ahead(sources):
        assert [weights_id(folder) for folder in folders] == ids
        assert sorted(hashed) == folders
        # Taken once: it may have changed since.
        shutil.copytree(folders[1], folders[0], dirs_exist_ok=True)
        assert weights_id(folders[0]) == ids[1]


def test_nothing_is_left_behind_the_context(folders: list[Path], hashed: list[Path]) -> None:
    with hashing_ahead(map(str, folders)):
        pass
    assert fingerprint._AHEAD == {}
    shutil.copytree(folders[1], folders[0], dirs_exist_ok=True)
    assert weights_id(folders[0]) == weights_id(folders[1])


def test_a_broken_checkpoint_is_reported_by_who_asks(folders: list[Path]) -> None:
    (folders[0] / "model.safetensors").write_bytes(b"no weights")
    with hashing_ahead(map(str, folders)):
        with pytest.raises(CheckpointError, match="safetensors"):
            weights_id(folders[0])
        assert weights_id(folders[1])
