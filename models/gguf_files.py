"""GGUF files are read by transformers; this only keeps it from reading the same header again and again."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def parsed_once() -> Iterator[None]:
    """Within this context a GGUF file's header is parsed once, whoever asks.

    transformers parses it for the config, for the tokenizer and for the weights, which takes seconds each
    time (every token of the vocabulary is a field), and builds gguf's table of tensor names once per module
    of the model.
    """
    import gguf

    reader, name_map = gguf.GGUFReader, gguf.get_tensor_name_map
    vars(gguf).update(GGUFReader=functools.cache(reader), get_tensor_name_map=functools.cache(name_map))
    try:
        yield
    finally:
        vars(gguf).update(GGUFReader=reader, get_tensor_name_map=name_map)
