"""Index of the tensors in a folder's safetensors files, read and validated without torch."""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalsuite.foundation import CheckpointError, parse_json
from evalsuite.models.checkpoints.config import read_object

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
"""Bits of an element, by the format's dtypes."""


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
            is truncated, unreadable or not safetensors.
    """
    folder = Path(folder)
    try:
        tensors = [tensor for file in _files(folder) for tensor in read_header(file)]
    except OSError as error:
        raise CheckpointError(f"{error.filename or folder}: cannot be read ({error.strerror})") from error
    return sorted(tensors, key=lambda tensor: tensor.name)


def _files(folder: Path) -> list[Path]:
    if (folder / INDEX).exists():
        files = [folder / name for name in _shards(folder / INDEX)]
        for file in files:
            if not file.is_file():
                raise CheckpointError(f"{file}: listed in {INDEX} but missing; copy the checkpoint again")
        return files
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    pickled = sorted(p.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for p in folder.glob(pattern))
    if pickled:
        raise CheckpointError(
            f"{folder}: only pickle weights ({pickled[0]}), refused because loading them can run code; "
            "convert them with transformers' save_pretrained"
        )
    raise CheckpointError(f"{folder}: no {SINGLE}; a checkpoint is a Hugging Face folder")


def _shards(index: Path) -> list[str]:
    """File names of the shards, which lie in the folder of their index."""
    shards = read_object(index).get("weight_map")
    if not isinstance(shards, dict):
        raise CheckpointError(f"{index}: not an index of safetensors shards (no 'weight_map')")
    for tensor, name in shards.items():
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{index}: 'weight_map.{tensor}' = {name!r}: must name a safetensors file of this folder"
            )
    return sorted(set(shards.values()))


def read_header(file: Path) -> list[StoredTensor]:
    """The tensors of one safetensors file, whose size is validated.

    Raises:
        CheckpointError: the file is truncated or not safetensors, or a tensor's dtype, shape and place do not
            fit together.
    """
    size = file.stat().st_size
    with open(file, "rb") as stream:
        head = stream.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else -1
        if not 0 < length <= size - 8:
            raise CheckpointError(f"{file}: truncated or not a safetensors file ({size} bytes)")
        try:
            header = parse_json(stream.read(length))
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{file}: not a safetensors file ({error})") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{file}: not a safetensors file (its header is no JSON object)")
    tensors = [
        _tensor(file, name, entry, 8 + length) for name, entry in header.items() if name != "__metadata__"
    ]
    end = 8 + length
    for tensor in sorted(tensors, key=lambda each: (each.start, each.end)):
        if tensor.start != end:
            how = "overlaps another one" if tensor.start < end else "leaves a gap before it"
            raise CheckpointError(f"{file}: tensor '{tensor.name}' {how}")
        end = tensor.end
    if end != size:
        how = "truncated" if end > size else "more than its tensors"
        raise CheckpointError(f"{file}: {how}, {size} of {end} bytes; copy the checkpoint again")
    return tensors


def _tensor(file: Path, name: str, entry: Any, data: int) -> StoredTensor:
    """Validate one entry of a header; `data` is the offset at which the tensors begin."""
    found = entry if isinstance(entry, dict) else {}
    dtype: Any = found.get("dtype")
    shape: Any = found.get("shape")
    offsets: Any = found.get("data_offsets")
    where = f"{file}: tensor '{name}'"
    if not isinstance(dtype, str) or dtype not in BITS:
        raise CheckpointError(f"{where}: 'dtype' = {dtype!r} is no dtype of the safetensors format")
    if not _are_counts(shape):
        raise CheckpointError(f"{where}: 'shape' = {shape!r} must list sizes of at least 0")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where}: 'data_offsets' = {offsets!r} must be a start and an end")
    start, end = offsets
    bits = math.prod(shape) * BITS[dtype]
    if bits != 8 * (end - start):
        raise CheckpointError(
            f"{where}: {dtype} of shape {shape} takes {bits // 8} bytes, 'data_offsets' hold {end - start}"
        )
    return StoredTensor(
        name=name, dtype=dtype, shape=tuple(shape), file=file, start=data + start, end=data + end
    )


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
