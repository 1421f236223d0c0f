"""Markdown of the report, the gate and model cards: escaped text and tables."""

import re

_NUMBER = re.compile(r"\W*(\d|$)")
"""A number, maybe with a sign or emphasis, or nothing."""


def escape(text: str) -> str:
    """Escape text so that Markdown and its inline HTML show it verbatim."""
    text = " ".join(text.split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", text)


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, whose columns of numbers are right-aligned. Cells are not escaped."""
    rule = ["---:" if all(map(_NUMBER.match, column)) else "---" for column in zip(*rows, strict=True)]
    lines = [header, rule or ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
