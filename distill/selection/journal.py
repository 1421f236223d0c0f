"""What a selection has found so far, line by line, so that an interrupted one asks nothing twice."""

from pathlib import Path
from typing import Any

from evalsuite.foundation import RunFolderError, append_jsonl, read_jsonl

SCHEMA = 1


class Journal:
    """A JSON-lines file whose first line says which teacher and question it belongs to.

    Args:
        path: created with the first value.
        teacher: weights_id.
        about: what decides the values (JSON); another one is refused.

    Raises:
        RunFolderError: the file is the history of another teacher, or of other settings.
    """

    def __init__(self, path: Path, *, teacher: str, about: dict[str, Any], writes: bool = True) -> None:
        self.path, self._writes = path, writes
        self._header = {"schema": SCHEMA, "teacher": teacher, "about": about}
        rows = list(read_jsonl(path))
        if rows:
            self._check(rows[0])
        self._started = bool(rows)
        self.rows: list[dict[str, Any]] = rows[1:]

    def _check(self, header: dict[str, Any]) -> None:
        if header.get("teacher") != self._header["teacher"]:
            raise RunFolderError(
                f"{self.path} is the history of another teacher (weights {header.get('teacher')}, not "
                f"{self._header['teacher']}); choose another --work folder"
            )
        if header != self._header:
            raise RunFolderError(
                f"{self.path} is a history with other settings, or of another version of evalsuite; "
                "choose another --work folder"
            )

    def append(self, row: dict[str, Any]) -> None:
        """Add a row and flush it to disk."""
        self.rows.append(row)
        if self._writes:
            append_jsonl(self.path, [row] if self._started else [self._header, row])
        self._started = True

    def cut(self, rows: int) -> None:
        """Forget all but the first rows: what came after the state from which a pass goes on."""
        if len(self.rows) <= rows:
            return
        self.rows = self.rows[:rows]
        if self._writes:
            self.path.unlink()
            append_jsonl(self.path, [self._header, *self.rows])
