"""Where the files of a checkpoint lie. Importing this module is cheap."""

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evalsuite.foundation import CheckpointError
from evalsuite.models.checkpoints.precision import EXACT, Precision, split_precision

POCKET = Path(__file__).parents[1] / "pocket"
"""Folder of the pocket teacher."""

TRAINING = "training.jsonl"
"""File name of the loss curve in a student's folder."""

FAILED = "failed"
"""Folder of a training run in which students that diverged are noted, one JSON file each."""

_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
_HUB_ID = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*/[\w.-]+)(?:@(?P<revision>[\w.][\w./-]*))?")
"""`ORG/NAME` or, for a commit, tag or branch, `ORG/NAME@REVISION`."""


@dataclass(frozen=True, slots=True)
class Location:
    """Local folder (and GGUF file) of a checkpoint."""

    source: str
    folder: Path
    gguf: str | None = None
    header: Any = field(default=None, compare=False)
    """The `HeaderReader` of an opened GGUF file."""
    precision: Precision = EXACT
    """The settings in its name; `source` is without them."""

    @property
    def name(self) -> str:
        """The source with its settings."""
        return f"{self.source}:{self.precision}" if self.precision else self.source

    @property
    def revision(self) -> str | None:
        """The commit of a hub model, after which the hub's cache names the folder."""
        return self.folder.name if self.folder.parent.name == "snapshots" else None

    @property
    def path(self) -> Path:
        """The folder or the GGUF file."""
        return self.folder / self.gguf if self.gguf else self.folder


def locate(source: str) -> Location:
    """Locate a checkpoint; a hub id is looked up in the cache and downloaded unless offline.

    Raises:
        CheckpointError: neither found here nor on the hub, or invalid settings.
    """
    if (found := locate_here(source)) is not None:
        return found
    name, precision = split_precision(source)
    return Location(name, _from_hub(name), precision=precision)


def locate_here(source: str) -> Location | None:
    """Locate a checkpoint on this machine; None for a hub id.

    Raises:
        CheckpointError: no checkpoint, and no hub id, or invalid settings.
    """
    name, precision = split_precision(source)
    found = _locate_files(name)
    return None if found is None else replace(found, precision=precision)


def _locate_files(source: str) -> Location | None:
    if source == "pocket":
        if not (POCKET / "config.json").is_file():
            raise CheckpointError("pocket: this installation has no pocket teacher; reinstall evalsuite")
        return Location(source, POCKET)
    try:
        path = Path(source).expanduser()
        if path.is_file():
            if path.suffix != ".gguf":
                raise CheckpointError(f"{source}: a checkpoint is a hub id, a folder or a .gguf file")
            return Location(source, path.parent, path.name)
        if path.is_dir():
            if not (path / "config.json").exists():
                raise CheckpointError(f"{source}: no config.json; a checkpoint is a Hugging Face folder")
            return Location(source, path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError(f"{source[:200]}: cannot be read ({reason})") from error
    if not _HUB_ID.fullmatch(source):
        raise CheckpointError(f"{source}: no such folder or file")
    return None


def _from_hub(source: str) -> Path:
    from huggingface_hub import snapshot_download

    found = _HUB_ID.fullmatch(source)
    assert found is not None
    name, revision = found["name"], found["revision"]
    try:
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=_HUB_FILES))
        if (folder / "lineage.json").is_file():
            snapshot_download(name, revision=revision, allow_patterns=[TRAINING])
        return folder
    except Exception as error:
        # The hub client raises a dozen exception types (offline, gated, not found, timeouts).
        offline = " (HF_HUB_OFFLINE is set)" if os.environ.get("HF_HUB_OFFLINE") else ""
        raise CheckpointError(
            f"{source}: no such folder, and not available from the Hugging Face hub{offline}: "
            f"{first_line(error)}"
        ) from error


def first_line(error: Exception) -> str:
    """First line of a message of another package, with what follows a colon at its end."""
    first, *rest = (str(error).strip() or type(error).__name__).splitlines()
    return f"{first} {rest[0].strip()}" if first.endswith(":") and rest else first
