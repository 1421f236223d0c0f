"""Caching of GGUF headers, which transformers would parse repeatedly."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def cached_gguf_reader() -> Iterator[None]:
    """Parse a GGUF file's header only once within this context.

    transformers parses it for the config, the tokenizer and the weights, which takes seconds each time (every
    token of the vocabulary is a field), and builds gguf's table of tensor names once per module of the model.
    """
    import gguf

    reader, name_map = gguf.GGUFReader, gguf.get_tensor_name_map
    vars(gguf).update(GGUFReader=functools.cache(reader), get_tensor_name_map=functools.cache(name_map))
    try:
        yield
    finally:
        vars(gguf).update(GGUFReader=reader, get_tensor_name_map=name_map)
