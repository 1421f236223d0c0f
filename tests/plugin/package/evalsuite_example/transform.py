"""A row transform: one question per word of a text."""

from typing import Any

from evalsuite.tasks.sources.data import DataSource

EVALSUITE_API = 1


def first_letters(rows: list[dict[str, Any]], data: DataSource, *, words: int = 1) -> list[dict[str, Any]]:
    """Questions for the first letter of the first `words` words of every row."""
    return [
        {"prompt": f"The first letter of {word} is", "answers": [word[0]]}
        for row in rows
        for word in row["text"].split()[:words]
    ]
