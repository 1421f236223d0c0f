"""Preparation of rows: parsing, rendering, filtering and tokenizing, in any process."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import count, islice
from typing import Any

from evalsuite.distill.data.chat import Render, end_tokens, source_renderer
from evalsuite.distill.data.chunks import Chunk
from evalsuite.distill.data.examples import Example, Parsed, parse_row, shuffled
from evalsuite.distill.data.packing import Document, repeat_spans, tokenize
from evalsuite.distill.data.readers import open_reader
from evalsuite.distill.recipe.data_sources import DataSourceConfig, PocketSourceConfig, TableSourceConfig
from evalsuite.foundation import ConfigError, DataError, parse_json
from evalsuite.models.checkpoints.tokenizers import TextEncoder


class Preparation:
    """What happens to the rows and examples of a recipe's sources; it can be sent to other processes.

    Args:
        tokenizer: a fast tokenizer of transformers.

    Raises:
        ConfigError: the tokenizer has no end-of-text token.
    """

    def __init__(self, sources: Mapping[str, DataSourceConfig], tokenizer: Any) -> None:
        self._sources = dict(sources)
        self._encoder = TextEncoder(tokenizer)
        self._eos_id = eos_token_id(tokenizer)
        # The tokenizer of transformers takes seconds to import and is needed for chats only.
        renders_chats = any(
            isinstance(source, TableSourceConfig) and source.messages is not None
            for source in sources.values()
        )
        self._chat_tokenizer = tokenizer if renders_chats else None
        self._renderers: dict[str, Render | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_renderers": {}}

    def _renderer(self, name: str) -> Render | None:
        """Of one source at a time: those that no stage reads may not fit the tokenizer."""
        if self._chat_tokenizer is None:
            return None
        if name not in self._renderers:
            try:
                self._renderers[name] = source_renderer(self._chat_tokenizer, self._sources[name])
            except ConfigError as error:
                raise ConfigError(f"data source '{name}': {error}") from None
        return self._renderers[name]

    @cached_property
    def _end_tokens(self) -> tuple[str, ...]:
        return () if self._chat_tokenizer is None else end_tokens(self._chat_tokenizer)

    def parse(self, name: str, chunk: Chunk) -> list[Parsed | None]:
        """What a chunk's rows hold; None for rows that the source's filters drop.

        Raises:
            ConfigError: the source's chat template does not fit.
            DataError: a row is no JSON object, or as `parse_row`; the message names source, file and row.
        """
        source = self._sources[name]
        if isinstance(source, PocketSourceConfig):
            return list(_pocket_examples(source, chunk.rows))
        assert isinstance(source, TableSourceConfig)
        render, found = self._renderer(name), list[Parsed | None]()
        for number, row in enumerate(chunk.items):
            place = chunk.place(number)
            with _named_row(name, place):
                found.append(parse_row(row_of(row), source, render, place))
        return found

    def tokenize(self, name: str, examples: Sequence[Parsed], mask_prompt: bool) -> list[Document]:
        """The documents of these examples (see `packing.tokenize`).

        Raises:
            DataError: as `conversation_segments`; the message names source, file and row.
        """
        source = self._sources[name]
        found = [self.segmented(name, example) for example in examples]
        documents = tokenize(found, self._encoder, self._eos_id, mask_prompt=mask_prompt)
        if source.repeat_chunk_tokens is None:
            return documents
        return [
            repeat_spans(document, source.repeat_chunk_tokens, source.repeat_span_tokens)
            for document in documents
        ]

    def segmented(self, name: str, parsed: Parsed) -> Example:
        """The example of what `parse` returned.

        Raises:
            DataError: as `conversation_segments`; the message names source, file and row.
        """
        if isinstance(parsed, Example):
            return parsed
        render = self._renderer(name)
        assert render is not None
        with _named_row(name, parsed.place):
            return parsed.segmented(render, self._end_tokens)


@contextmanager
def _named_row(source: str, place: str) -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise DataError(f"data source '{source}': {place}: {error}") from None


def read_examples(name: str, source: DataSourceConfig, tokenizer: Any) -> Iterator[Example]:
    """Yield the examples of a source once, in its own order. Raises DataError as readers do."""
    preparation = Preparation({name: source}, tokenizer)
    yield from (preparation.segmented(name, each) for each in _read_parsed(name, source, preparation))


def read_shuffled(name: str, source: DataSourceConfig, tokenizer: Any, seed: int) -> Iterator[Example]:
    """Yield the examples of a source once, in an order of training: shuffled within its shuffle buffer.

    Texts of the pocket corpus are drawn independently and need no shuffling.
    """
    if not isinstance(source, TableSourceConfig):
        yield from read_examples(name, source, tokenizer)
        return
    preparation = Preparation({name: source}, tokenizer)
    parsed = _read_parsed(name, source, preparation)
    for number in count():
        buffer = list(islice(parsed, source.shuffle_buffer_size))
        if not buffer:
            return
        # Callers stop early, mostly: segments are found of what they take.
        yield from (
            preparation.segmented(name, each) for each in shuffled(buffer, seed, source.seed, 0, number)
        )


def _read_parsed(name: str, source: DataSourceConfig, preparation: Preparation) -> Iterator[Parsed]:
    reader = open_reader(source, name)
    for chunk in reader.chunks(reader.start()):
        yield from (each for each in preparation.parse(name, chunk) if each is not None)


def eos_token_id(tokenizer: Any) -> int:
    """The token that terminates a document.

    Raises:
        ConfigError: the tokenizer has none.
    """
    if tokenizer.eos_token_id is None:
        raise ConfigError("the tokenizer has no end-of-text token, which is needed to separate documents")
    return int(tokenizer.eos_token_id)


def _pocket_examples(source: PocketSourceConfig, numbers: range) -> Sequence[Example]:
    from evalsuite.tasks.synthetic.pocket import MIXTURE, texts

    options: dict[str, Any] = {}
    if source.max_haystack_tokens is not None:
        options["longest"] = source.max_haystack_tokens
    stream = texts(
        source.seed, source.split, mixture=source.mixture or MIXTURE, start=numbers.start, **options
    )
    return [
        Example(tuple((segment.text, segment.answer) for segment in text))
        for text in islice(stream, len(numbers))
    ]


def row_of(row: Any) -> dict[str, Any]:
    """A row as a dictionary; lines of JSON are parsed. Raises DataError for anything else."""
    if isinstance(row, bytes):
        try:
            row = parse_json(row, allow_nan=True)
        except (ValueError, RecursionError) as error:
            raise DataError(f"cannot be read ({error})") from None
    if not isinstance(row, dict):
        raise DataError(f"a row is {type(row).__name__}, not an object")
    return row
