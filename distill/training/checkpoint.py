"""Training states on disk, from which an interrupted run resumes (torch.distributed.checkpoint).

    folder/<number>/__<process>_0.distcp     tensors: each process writes its own shards
    folder/<number>/.metadata                which file holds which part of which tensor
    folder/<number>/state.json               progress
    folder/latest.json                       the current number

A state can be loaded by another number of processes, and into sharded or whole parameters.
"""

import pickle
import shutil
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from evalsuite.distill.training.distributed import ProcessGroup, lost_process
from evalsuite.distill.training.train_state import Progress, TrainState
from evalsuite.foundation import CheckpointError, RunFolderError, read_json, write_json

STATE_SCHEMA = 6
"""2: keys of the data loader's state were renamed. 3: stages continue the sources of earlier ones.
4: positions in data sources identify the files or the commit that were read. 5: sharded, written by
torch.distributed.checkpoint. 6: leftover documents of data sources name second copies of chunks."""

# It warns of every save and load of a run with a single process.
warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")


class Checkpointer:
    """Saves and loads the training state in one folder.

    A state is copied to the CPU and written by a thread while training continues. The previous state is
    deleted only after the new one is complete in all processes, so that a process can be killed at any time.

    Args:
        folder: holds nothing else; all processes see the same one.
        interval: seconds between states, for `is_due`; 0: after every step.
    """

    def __init__(self, folder: Path, process_group: ProcessGroup, interval: float = 0.0) -> None:
        self.folder, self._process_group = Path(folder), process_group
        self.interval = interval
        self.begin_interval()
        # The thread's messages must not mix with those of the training loop.
        self._group = process_group.new_control_group()
        self._writer: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None
        self._number = latest_number(self.folder)
        if process_group.is_main:
            self._remove_others(self._current)

    def begin_interval(self) -> None:
        """Count the interval from now on: training begins, and before it there is nothing to save."""
        self._interval_began = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the last state was begun, or a stage, at least the interval ago."""
        return time.monotonic() - self._interval_began >= self.interval

    @property
    def _current(self) -> Path:
        return state_path(self.folder, self._number)

    def progress(self) -> Progress | None:
        """Progress of the last complete state; None without one.

        Raises:
            CheckpointError: the state is damaged or has another schema.
        """
        return None if self._number == 0 else read_progress(self._current)

    def load(self, train_state: TrainState) -> None:
        """Load the last complete state into weights, optimizers and random numbers, but not `progress`.

        Every process reads what it needs, without the others.

        Raises:
            CheckpointError: the state is damaged, has another schema, or is that of another model.
        """
        self.progress()
        reader = _Reader(self._current)
        try:
            saved = saved_tensors(reader.read_metadata())
            tensors = train_state.empty_state_dict(saved)
            dcp.load(tensors, storage_reader=reader, no_dist=True)
        except CheckpointError as error:
            raise CheckpointError(f"{self._current}: {error}; start in a new folder") from None
        except (Exception, dcp.CheckpointException) as error:
            raise _damaged(self._current, _causes(error)[0]) from error
        train_state.load_state_dict(tensors)

    def save(self, train_state: TrainState, *, alone: bool = False) -> None:
        """Begin to write a state, after the one before is complete; a collective call.

        Args:
            alone: the other processes do not take part, and may have ended. No parameter is sharded.

        Raises:
            RunFolderError: the state before could not be written.
        """
        self.wait(alone=alone)
        tensors = train_state.state_dict()
        staged: Any = DefaultStager(StagingOptions(False, False, False, False)).stage(tensors)
        state = {"schema": STATE_SCHEMA, **asdict(train_state.progress)}
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._number += 1
        self.begin_interval()
        self._pending = self._writer.submit(self._write, self._number, staged, state, alone)

    def _write(self, number: int, tensors: dict[str, Tensor], state: dict[str, Any], alone: bool) -> None:
        target, no_dist = state_path(self.folder, number), alone or self._group is None
        # What is staged is on the CPU. Copying ahead would wait for the device, which a thread must not do
        # while the main one captures a graph.
        writer = dcp.FileSystemWriter(target, per_thread_copy_ahead=0)
        dcp.save(tensors, storage_writer=writer, process_group=self._group, no_dist=no_dist)
        if self._process_group.is_main:
            write_json(target / "state.json", state)
            write_json(self.folder / LATEST, {"number": number})
            self._remove_others(target)

    def wait(self, *, alone: bool = False) -> None:
        """Wait until the last state is complete; a collective call.

        Args:
            alone: see `save`. A state that other processes did not complete is given up.

        Raises:
            RunFolderError: the disk is full or the folder cannot be written; the state before remains.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except (Exception, dcp.CheckpointException) as error:
            target = self._current
            self._number -= 1
            if self._process_group.is_main:
                shutil.rmtree(target, ignore_errors=True)
            causes = _causes(error)
            if alone and any(lost_process(cause) for cause in causes):
                return
            full = next((cause for cause in causes if isinstance(cause, (OSError, RunFolderError))), None)
            if full is None:
                # torch's own is no `Exception`, and would pass everything that reports one.
                raise causes[0] from error
            raise RunFolderError(f"{target}: the training state cannot be written ({full})") from error
        if not alone:
            # The main process has named the state after the others had written their parts.
            self._process_group.barrier()

    def close(self) -> None:
        """End the thread, after the state that it is writing."""
        if self._writer is not None:
            self._writer.shutdown()
            self._writer = None

    def delete(self) -> None:
        """Delete the state; a collective call."""
        self.wait()
        self._number = 0
        if self._process_group.is_main:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._process_group.barrier()

    def _remove_others(self, current: Path) -> None:
        """Remove earlier states, and what killed processes left behind."""
        for path in self.folder.glob("[0-9]*"):
            if path != current:
                shutil.rmtree(path, ignore_errors=True)


LATEST = "latest.json"
"""Names the last complete state of a folder."""


def latest_number(folder: Path) -> int:
    """Number of the last complete state in `folder`; 0 without one.

    Raises:
        CheckpointError: written by an earlier version.
    """
    path = folder / LATEST
    if not path.exists():
        return 0
    try:
        return int(read_json(path)["number"])
    except (KeyError, TypeError, ValueError):
        raise _wrong_schema(folder, "an earlier one") from None


def state_path(folder: Path, number: int) -> Path:
    """Where a folder keeps a state."""
    return folder / f"{number:06d}"


def read_progress(state: Path) -> Progress:
    """Progress of one state.

    Raises:
        CheckpointError: the state is damaged or has another schema.
    """
    try:
        value = read_json(state / "state.json")
    except Exception as error:
        raise _damaged(state, error) from error
    schema = value.pop("schema", None)
    if schema != STATE_SCHEMA:
        raise _wrong_schema(state, schema)
    return Progress(**value)


def _wrong_schema(path: Path, schema: object) -> CheckpointError:
    return CheckpointError(
        f"{path}: a training state of schema {schema}, written by another version of evalsuite; this version "
        f"reads schema {STATE_SCHEMA}. Finish the run with that version, or start in a new folder"
    )


def _damaged(path: Path, error: BaseException) -> CheckpointError:
    reason = str(error).split("\n")[0] or type(error).__name__
    return CheckpointError(
        f"{path}: the training state is damaged ({reason}); delete {path.parent} to start again"
    )


def _causes(error: BaseException) -> list[BaseException]:
    """What went wrong in the processes, or in this one, the innermost exceptions first."""
    found: list[BaseException] = []
    if isinstance(error, dcp.CheckpointException):
        for failure, _ in error.failures.values():
            found += _causes(failure)
        return found
    inner: BaseException | None = error
    while inner is not None:
        found.insert(0, inner)
        inner = inner.__cause__ or inner.__context__
    return found


def saved_tensors(metadata: Metadata) -> dict[str, Tensor]:
    """The tensors of a state by key, without values."""
    return {
        key: torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")
        for key, entry in metadata.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }


class _Reader(dcp.FileSystemReader):
    """Reads states whose metadata name tensors and files only: unpickled, they can run no code."""

    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        with open(Path(self.path) / ".metadata", "rb") as file:
            metadata: Metadata = _MetadataUnpickler(file).load()
        return metadata


class _MetadataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """The classes of metadata; all others are refused."""
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) not in _METADATA_CLASSES:
            raise pickle.UnpicklingError(f"its metadata contain {module}.{name}")
        return super().find_class(module, name)


_METADATA_CLASSES = {
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    *(
        ("torch.distributed.checkpoint.metadata", name)
        for name in (
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    ),
}
