"""Markdown of the report, the gate and model cards: escaped text and tables."""

import re


def escape(text: str) -> str:
    """Escape text so that Markdown and its inline HTML show it verbatim."""
    text = " ".join(text.split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", text)


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, right-aligned after the first column. Cells are not escaped."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
