"""Counts with their nouns."""


def counted(number: int, noun: str) -> str:
    """``1 student``, ``33,412 documents``: a regular noun with its number, in the plural unless it is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
