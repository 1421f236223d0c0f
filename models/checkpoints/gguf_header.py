"""Reading a GGUF file faster: its header parsed once, its blocks dequantized in large chunks.

Every token of the vocabulary is a value of the header, and memory maps of numpy take microseconds per slice.
"""

import functools
import importlib
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gguf
import numpy as np
from gguf import GGUFReader, GGUFValueType
from gguf.constants import GGML_QUANT_SIZES
from transformers import modeling_gguf_pytorch_utils

from evalsuite.foundation import CheckpointError
from evalsuite.models.checkpoints.location import first_line

CHUNK = 2**18
"""Values that are dequantized at a time: a few of gguf's intermediate arrays of them fit in a cache."""


class HeaderReader(GGUFReader):
    """`GGUFReader` that reads an array at once, and not through a memory map per value.

    Strings of an array are `bytes`, without their lengths; numbers are arrays of one element, as the base
    class has them.
    """

    @property
    def num_tokens(self) -> int:
        """Tokens of the vocabulary; 0 without one."""
        field = self.fields.get("tokenizer.ggml.tokens")
        return 0 if field is None else len(field.data)

    def stated(self, name: str) -> Any:
        """The number or truth value of a field; None where the file does not state it."""
        field = self.fields.get(name)
        return None if field is None else field.contents()

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type != GGUFValueType.ARRAY:
            parts: tuple[int, list[Any], list[int], list[Any]] = super()._get_field_parts(orig_offs, raw_type)
            return parts
        kind = GGUFValueType(int(self._get(orig_offs, np.uint32)[0]))
        count = int(self._get(orig_offs + 4, np.uint64)[0])
        start = orig_offs + 12
        if kind == GGUFValueType.STRING:
            values, end = self._strings(start, count)
        elif (dtype := self.gguf_scalar_to_np.get(kind)) is not None:
            numbers = np.array(self._get(start, dtype, count))
            if len(numbers) < count:
                raise ValueError("the header is truncated")
            values, end = list(numbers.reshape(count, 1)), start + numbers.nbytes
        else:
            raise ValueError(f"the header has an array of {kind.name}, which cannot be read")
        types = [GGUFValueType.ARRAY, *[kind][:count]]
        return end - orig_offs, values, list(range(count)), types

    def _strings(self, start: int, count: int) -> tuple[list[Any], int]:
        length_of = struct.Struct(f"{self._get(start, np.uint64, 0).dtype.byteorder}Q").unpack_from
        header, strings = self.data.data, []
        for _ in range(count):
            (length,) = length_of(header, start)
            start += 8
            if start + length > len(header):
                raise ValueError("the header is truncated")
            strings.append(bytes(header[start : start + length]))
            start += length
        return strings, start


@contextmanager
def header_parsed_once(path: str) -> Iterator[HeaderReader]:
    """Within this context transformers and gguf share one header of the file.

    transformers parses it for the config, the tokenizer and the weights, and builds gguf's table of tensor
    names once per module of the model. Tensors are dequantized in larger chunks.

    Raises:
        CheckpointError: it is damaged.
    """
    functions, read = vars(modeling_gguf_pytorch_utils), functools.cache(HeaderReader)
    replaced = [
        (vars(gguf), "GGUFReader", read),
        (vars(gguf), "dequantize", in_chunks(gguf.dequantize)),
        (vars(gguf), "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)),
        (functions, "load_gguf_checkpoint", _metadata_once(functions["load_gguf_checkpoint"])),
        (functions, "_gguf_parse_value", _array_values(functions["_gguf_parse_value"])),
    ]
    if _mapped := _own_reader().get("_mapped"):
        replaced.append((_own_reader(), "_mapped", lambda path: _mapped(path).view(np.ndarray)))
    before = [namespace[name] for namespace, name, _ in replaced]
    for namespace, name, value in replaced:
        namespace[name] = value
    try:
        try:
            header = read(path)
        except Exception as error:
            # A damaged file makes gguf and numpy raise anything.
            raise CheckpointError(f"{path}: its header cannot be read: {first_line(error)}") from error
        yield header
    finally:
        for (namespace, name, _), value in zip(replaced, before, strict=True):
            namespace[name] = value


def in_chunks(dequantize: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """`gguf.dequantize` of chunks of many rows, to the same values; it takes 16 rows at a time."""

    def values(data: Any, kind: Any) -> Any:
        block, size = GGML_QUANT_SIZES[kind]
        stored = data.view(np.ndarray)
        if block == 1:
            return dequantize(stored, kind)
        # No value depends on those of another block, and a row is a number of whole blocks.
        blocks, step = stored.reshape(-1, size), CHUNK // block
        found = np.empty((len(blocks), block), dtype=np.float32)
        for start in range(0, len(blocks), step):
            row = blocks[start : start + step].reshape(1, -1)
            found[start : start + step] = dequantize(row, kind).reshape(-1, block)
        return found.reshape(*data.shape[:-1], data.shape[-1] // size * block)

    return values


def _own_reader() -> dict[str, Any]:
    """The functions of transformers' own reader of headers, which its early versions lack."""
    try:
        return vars(importlib.import_module("transformers.integrations.gguf.reader"))
    except ModuleNotFoundError:
        return {}


def _array_values(parse: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """transformers' function for one value, which takes microseconds for each of an array's."""

    def value(part: Any, types: Any) -> Any:
        if type(part) is bytes:
            return part.decode()
        # Those of the base class are views of the file.
        return part.item() if type(part) is np.ndarray else parse(part, types)

    return value


def _metadata_once(load: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    parsed = functools.cache(load)

    def load_gguf_checkpoint(path: str, return_tensors: bool = False, **arguments: Any) -> dict[str, Any]:
        if return_tensors:
            return load(path, return_tensors=True, **arguments)
        return {group: dict(values) for group, values in parsed(path).items()}

    return load_gguf_checkpoint
