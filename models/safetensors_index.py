"""Index of the tensors in a folder's safetensors files, read and validated without torch."""

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.foundation import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Location, dtype and shape of one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    """Offset of the first byte in the file."""
    end: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def chunks(self, size: int = 1 << 24) -> Iterator[bytes]:
        """The tensor's bytes, in chunks of `size`."""
        with open(self.file, "rb") as file:
            file.seek(self.start)
            remaining = self.end - self.start
            while remaining:
                chunk = file.read(min(size, remaining))
                if not chunk:
                    raise CheckpointError(f"{self.file}: truncated within tensor '{self.name}'")
                remaining -= len(chunk)
                yield chunk


def stored_tensors(folder: Path) -> list[StoredTensor]:
    """Every tensor of the checkpoint in `folder`, sorted by name.

    Raises:
        CheckpointError: no safetensors weights (pickle files are never read), a missing shard, or a file that
            is truncated or not safetensors.
    """
    folder = Path(folder)
    tensors = [tensor for file in _files(folder) for tensor in read_header(file)]
    return sorted(tensors, key=lambda tensor: tensor.name)


def _files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        try:
            shards = sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
        except (json.JSONDecodeError, KeyError, AttributeError) as error:
            raise CheckpointError(
                f"{folder / INDEX}: not an index of safetensors shards ({error})"
            ) from error
        files = [folder / name for name in shards]
        for file in files:
            if not file.is_file():
                raise CheckpointError(f"{file}: listed in {INDEX} but missing; copy the checkpoint again")
        return files
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    pickled = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for p in folder.glob(pattern))
    if pickled:
        raise CheckpointError(
            f"{folder}: only pickle weights ({pickled[0]}), refused because loading them can run code; "
            "convert them with transformers' save_pretrained"
        )
    raise CheckpointError(f"{folder}: no {SINGLE}; a checkpoint is a Hugging Face folder")


def read_header(file: Path) -> list[StoredTensor]:
    """The tensors of one safetensors file, whose size is validated.

    Raises:
        CheckpointError: the file is truncated or not safetensors.
    """
    size = file.stat().st_size
    with open(file, "rb") as stream:
        head = stream.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else -1
        if not 0 < length <= size - 8:
            raise CheckpointError(f"{file}: truncated or not a safetensors file ({size} bytes)")
        try:
            header: dict[str, Any] = json.loads(stream.read(length))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise CheckpointError(f"{file}: not a safetensors file ({error})") from error
    tensors = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        tensors.append(
            StoredTensor(
                name=name,
                dtype=entry["dtype"],
                shape=tuple(entry["shape"]),
                file=file,
                start=8 + length + start,
                end=8 + length + end,
            )
        )
    last = max((tensor.end for tensor in tensors), default=8 + length)
    if last > size:
        raise CheckpointError(f"{file}: truncated, {size} of {last} bytes; copy the checkpoint again")
    return tensors
