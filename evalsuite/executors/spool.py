"""Messages of a job as a file: one process writes it, another reads it while it grows or afterwards."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evalsuite.foundation import EvalsuiteError, append_jsonl, errors


class Spool:
    """The file of one job.

    Args:
        path: on a file system that writer and reader share.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0

    def send(self, message: Mapping[str, Any]) -> None:
        """Write a message; it is on disk when this returns, as a `Channel`'s."""
        self._write("message", message)

    def set_description(self, desc: str) -> None:
        """Write what runs now."""
        self._write("description", desc)

    def result(self, index: int, value: Mapping[str, Any]) -> None:
        """Write the result of a job."""
        self._write("result", {"job": index, "value": value})

    def failure(self, error: BaseException, text: str) -> None:
        """Write the error that ended the job: `text`, unless evalsuite raised it on purpose."""
        known = isinstance(error, EvalsuiteError)
        self._write(
            "error", {"class": type(error).__name__ if known else None, "text": str(error) if known else text}
        )

    def new(self) -> Iterator[tuple[str, Any]]:
        """Yield (kind, value) of what was written since the last call; an error's value is an exception."""
        if not self.path.is_file():
            return
        with open(self.path, "rb") as file:
            file.seek(self._read)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self._read += len(complete)
        for line in complete.splitlines():
            row = json.loads(line)
            if row["kind"] == "error":
                kind = getattr(errors, row["value"]["class"] or "", EvalsuiteError)
                yield "error", kind(row["value"]["text"])
            else:
                yield row["kind"], row["value"]

    def _write(self, kind: str, value: Any) -> None:
        append_jsonl(self.path, [{"kind": kind, "value": value}])
