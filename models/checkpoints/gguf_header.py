"""Reading a GGUF file faster: its header parsed once in a process, its blocks dequantized in large chunks.

Every token of the vocabulary is a value of the header, and memory maps of numpy take microseconds per slice.
Only transformers' tokenizers need these values, and read them with functions of their own.
"""

import functools
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGUFReader, GGUFValueType
from gguf.constants import GGML_QUANT_SIZES
from transformers import modeling_gguf_pytorch_utils
from transformers.integrations.gguf import reader as transformers_reader

from evalsuite.foundation import CheckpointError
from evalsuite.models.checkpoints.location import first_line
from evalsuite.models.checkpoints.once_per_file import once_per_file

CHUNK = 2**18
"""Values that are dequantized at a time: a few of gguf's intermediate arrays of them fit in a cache."""

TRUNCATED = "the header is truncated"

LISTED = 4096
"""Values of the longest array that is read; those of a config have a value per layer."""


class HeaderReader(GGUFReader):
    """`GGUFReader` that skips the values of arrays of a vocabulary's size, whose fields have no `data`."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the vocabulary; 0 without one."""
        field = self.fields.get("tokenizer.ggml.tokens")
        # Length and text of the name, kind of the field and of its values, their number.
        return 0 if field is None else int(field.parts[4][0])

    def stated(self, name: str) -> Any:
        """The number or truth value of a field; None where the file does not state it."""
        field = self.fields.get(name)
        return None if field is None else field.contents()

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type == GGUFValueType.ARRAY:
            kind, count = self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)
            if count[0] > LISTED:
                end = self._end_of_values(orig_offs + 12, GGUFValueType(int(kind[0])), int(count[0]))
                return end - orig_offs, [kind, count], [], [GGUFValueType.ARRAY, GGUFValueType(int(kind[0]))]
        parts: tuple[int, list[Any], list[int], list[Any]] = super()._get_field_parts(orig_offs, raw_type)
        return parts

    def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
        try:
            super()._build_tensors(start_offs, fields)
        except ValueError as error:
            raise ValueError(f"the tensors behind it are damaged or cut off ({error})") from None

    def _end_of_values(self, start: int, kind: GGUFValueType, count: int) -> int:
        header, end = self.data.data, start
        if kind == GGUFValueType.STRING:
            length_of = struct.Struct(f"{self._get(start, np.uint64, 0).dtype.byteorder}Q").unpack_from
            try:
                for _ in range(count):
                    end += 8 + length_of(header, end)[0]
            except struct.error:
                raise ValueError(TRUNCATED) from None
        elif (dtype := self.gguf_scalar_to_np.get(kind)) is not None:
            end += count * np.dtype(dtype).itemsize
        else:
            raise ValueError(f"the header has an array of {kind.name}, which cannot be read")
        if end > len(header):
            raise ValueError(TRUNCATED)
        return end


@contextmanager
def header_parsed_once(path: str) -> Iterator[HeaderReader]:
    """Within this context transformers and gguf share one header of the file, which the process keeps.

    transformers parses it for the config, the tokenizer and the weights, and builds gguf's table of tensor
    names once per module of the model. Tensors are dequantized in larger chunks.

    Raises:
        CheckpointError: it is damaged.
    """
    functions, own_reader = vars(modeling_gguf_pytorch_utils), vars(transformers_reader)
    replaced = [
        (vars(gguf), "GGUFReader", _header),
        (vars(gguf), "dequantize", in_chunks(gguf.dequantize)),
        (vars(gguf), "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)),
        (functions, "load_gguf_checkpoint", _with_vocab_size(functions["load_gguf_checkpoint"])),
        (own_reader, "_mapped", _mapped(own_reader["_mapped"])),
        (own_reader, "_read_metadata", _metadata_once(own_reader["_read_metadata"])),
    ]
    before = [namespace[name] for namespace, name, _ in replaced]
    for namespace, name, value in replaced:
        namespace[name] = value
    try:
        try:
            header = _header(path)
        except Exception as error:
            # A damaged file makes gguf and numpy raise anything.
            raise CheckpointError(f"{path}: its header cannot be read: {first_line(error)}") from error
        yield header
    finally:
        for (namespace, name, _), value in zip(replaced, before, strict=True):
            namespace[name] = value


def _header(path: str) -> HeaderReader:
    return once_per_file("header", path, lambda: HeaderReader(path))


def in_chunks(dequantize: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`gguf.dequantize` of chunks of many rows, on torch's number of threads, to the same values; it takes 16
    rows at a time."""

    def values(data: Any, kind: Any) -> Any:
        block, size = GGML_QUANT_SIZES[kind]
        stored = data.view(np.ndarray)
        if block == 1:
            return dequantize(stored, kind)
        # No value depends on those of another block, and a row is a number of whole blocks.
        blocks, step = stored.reshape(-1, size), CHUNK // block
        found = np.empty((len(blocks), block), dtype=np.float32)

        def fill(start: int) -> None:
            row = blocks[start : start + step].reshape(1, -1)
            found[start : start + step] = dequantize(row, kind).reshape(-1, block)

        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(fill, range(0, len(blocks), step)))
        return found.reshape(*data.shape[:-1], data.shape[-1] // size * block)

    return values


def _with_vocab_size(load: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """transformers' function, which counts the tokens of a file that does not state their number."""

    def load_gguf_checkpoint(path: str, *arguments: Any, **named: Any) -> dict[str, Any]:
        loaded = load(path, *arguments, **named)
        if loaded["config"].get("vocab_size") == 0:
            loaded["config"]["vocab_size"] = _header(path).num_tokens
        return loaded

    return load_gguf_checkpoint


def _mapped(map_file: Callable[[str], Any]) -> Callable[[str], Any]:
    """transformers' function, without numpy's class of memory maps, whose every slice takes microseconds."""
    return lambda path: map_file(path).view(np.ndarray)


def _metadata_once(read: Callable[..., Any]) -> Callable[..., Any]:
    """transformers' function; what it reads for tokenizers is large, and they are derived once."""

    def read_metadata(blob: Any, path: str, string_arrays: Any = ()) -> Any:
        if string_arrays:
            return read(blob, path, string_arrays)
        return once_per_file("metadata", path, lambda: read(blob, path))

    return read_metadata
