"""Reads the training state of a run folder."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp

from evalsuite.distill.training.checkpoint import Checkpointer, saved_tensors
from evalsuite.distill.training.distributed import ProcessGroup
from evalsuite.distill.training.train_state import Progress


def num_states(folder: Path) -> int:
    """Number of states saved so far."""
    latest = folder / "latest.json"
    return int(latest.read_text().partition(":")[2].strip(" }\n")) if latest.exists() else 0


def read_state(folder: Path) -> tuple[Progress, dict[str, Tensor]]:
    """Progress and tensors of the last complete state."""
    progress = Checkpointer(folder, ProcessGroup("cpu")).progress()
    assert progress is not None
    reader = dcp.FileSystemReader(folder / f"{num_states(folder):06d}")
    shapes = saved_tensors(reader.read_metadata())
    tensors = {key: torch.empty(tensor.shape, dtype=tensor.dtype) for key, tensor in shapes.items()}
    dcp.load(tensors, storage_reader=reader, no_dist=True)
    return progress, tensors


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch, call: int = 1) -> Iterator[None]:
    """From the n-th state on, tensors cannot be written: the file ends after a few bytes."""
    states = []
    real = dcp.FileSystemWriter.write_data

    def write_data(self, plan, planner):
        states.append(plan)
        if len(states) < call:
            return real(self, plan, planner)
        Path(self.path, "__0_0.distcp").write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(dcp.FileSystemWriter, "write_data", write_data)
        yield
