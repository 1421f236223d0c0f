"""Readers: what yields the rows of each kind of data source."""

from collections.abc import Iterator

from evalsuite.distill.data.chunks import Chunk, Position, Reader
from evalsuite.distill.data.hub_reader import HubReader
from evalsuite.distill.data.local_reader import LocalReader
from evalsuite.distill.data.side_by_side import CHUNK_ROWS
from evalsuite.distill.recipe.data_sources import (
    DataSourceConfig,
    HubSourceConfig,
    LocalSourceConfig,
    PocketSourceConfig,
)
from evalsuite.foundation import DataError


def open_reader(source: DataSourceConfig, name: str) -> Reader:
    """Open a source, which is called `name` in messages."""
    match source:
        case PocketSourceConfig():
            return PocketReader()
        case LocalSourceConfig():
            return LocalReader(source, name)
        case HubSourceConfig():
            return HubReader(source, name)
    raise DataError(f"data source '{name}': {source.kind} has no documents until they are generated")


class PocketReader:
    """Numbers of the texts of the pocket corpus, which is infinite."""

    def start(self) -> Position:
        return {}

    def chunks(self, position: Position) -> Iterator[Chunk]:
        first = position.get("text", 0)
        while True:
            yield Chunk(range(first, first + CHUNK_ROWS), {"text": first}, "text")
            first += CHUNK_ROWS
