"""Files of a source that are read side by side, so that ordered files (code, then mathematics) are mixed.

Up to `WAYS` files are open at a time. The next rows come from the one of which the least is read, so that all
end together and each has its share of the rows at every moment. The order of the files is drawn with the
source's seed; which file comes next depends on what is read alone, so that reading can be resumed.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from evalsuite.distill.data.examples import shuffled

CHUNK_ROWS = 256
"""Rows that are read and parsed together."""
WAYS = 16
"""Files that are open at a time."""


class OpenFile(Protocol):
    """A file that is read from its start or from a row on.

    `row`: rows that are read. `progress`: how much is read, in a unit that all files of a source share.
    """

    row: int

    @property
    def progress(self) -> float: ...

    def read(self, count: int) -> Any:
        """The next rows, at most `count`; empty at the end.

        Raises:
            DataError: the file cannot be read.
        """


def groups(count: int, seed: int) -> list[list[int]]:
    """Numbers of `count` files in a seeded order, in groups that are read side by side."""
    order = shuffled(range(count), seed) if count > WAYS else list(range(count))
    return [order[first : first + WAYS] for first in range(0, count, WAYS)]


def side_by_side(files: Sequence[OpenFile], current: int = 0) -> Iterator[tuple[int, Any]]:
    """Yield chunks, each with its place in `files`, from `current` on if it was left within a chunk."""
    remaining = set(range(len(files)))
    while remaining:
        within = files[current].row % CHUNK_ROWS if current in remaining else 0
        if not within:
            current = min(remaining, key=lambda place: (files[place].progress, place))
        rows = files[current].read(CHUNK_ROWS - within)
        if len(rows):
            yield current, rows
        else:
            remaining.remove(current)
