"""Rows of a data source in chunks, from any position.

A position is a small JSON value: it says where a row is, and what the source looked like when it was read, so
that an interrupted run continues with the same rows or is told that they have changed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from evalsuite.foundation import DataError

Position = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows that are parsed together, possibly in another process (see `preparation`).

    `rows`: lines of JSON, an Arrow record batch, dictionaries, or numbers of pocket texts. `position`: of the
    first row; its key `counter` counts rows. `file`: where the rows are, for messages.
    """

    rows: Any
    position: Position
    counter: str
    file: str = ""

    @property
    def items(self) -> Sequence[Any]:
        """The rows one by one."""
        found: Sequence[Any] = self.rows.to_pylist() if hasattr(self.rows, "to_pylist") else self.rows
        return found

    def place(self, number: int) -> str:
        """Where row `number` of the chunk is, counted from 1 without blank lines, for messages."""
        first = self.position.get("row", 0) + self.position.get("skip", 0)
        return f"{self.file}, row {first + number + 1}"

    def position_after(self, rows: int) -> Position:
        """Position of the row that follows the first `rows` rows."""
        return {**self.position, self.counter: self.position.get(self.counter, 0) + rows}


class Reader(Protocol):
    """A source of rows."""

    def start(self) -> Position:
        """Position of the first row.

        Raises:
            DataError: the source cannot be opened.
        """

    def chunks(self, position: Position) -> Iterator[Chunk]:
        """The rows from `position` to the end of the source.

        Raises:
            DataError: a row cannot be read, or the source has changed since the position was saved.
        """


def refuse_earlier_order(name: str) -> DataError:
    """The error for a position of a version that read the files of a source one after the other."""
    return DataError(
        f"data source '{name}': the training state was saved by a version that read files one after the "
        "other; start in a new folder"
    )
