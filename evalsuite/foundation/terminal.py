"""Text for a terminal: names from files may hold control characters, which are escaped."""

import re
from typing import IO, Any

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and newline, marks that reverse the direction of text, and lone surrogates."""


def printable(text: str) -> str:
    """Return `text` with control characters escaped, as in ``\\x1b[2J``."""
    return CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)


class PrintableStream:
    """A text stream that escapes control characters."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write `text`, escaped."""
        return self._stream.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
