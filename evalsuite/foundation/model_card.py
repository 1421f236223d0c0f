"""Model cards: README.md with YAML front matter, as the Hugging Face Hub reads it."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from evalsuite.foundation.errors import ConfigError, DataError
from evalsuite.foundation.strict_yaml import parse_yaml

LOSS_STATEMENT = "Distillation Loss Statement"
"""Section of a student's card that an evaluation fills in (term of arXiv 2604.25110)."""
_FRONT_MATTER = re.compile(r"---\s*\n(?P<yaml>.*?)\n?---\s*(?:\n|$)(?P<body>.*)", re.DOTALL)

_BAR = re.compile(r"(?<!\\)\|")
_ESCAPED_BAR = r"\\|"


def read_card(text: str, place: str) -> tuple[dict[str, Any], str]:
    """Split a card into its front matter and its body.

    Args:
        text: the card; front matter may be absent.
        place: file, for messages.

    Raises:
        DataError: the front matter is no YAML mapping.
    """
    match = _FRONT_MATTER.match(text)
    if match is None:
        return {}, text
    try:
        value = parse_yaml(match["yaml"], f"{place}: the front matter")
    except ConfigError as error:
        raise DataError(str(error)) from None
    if value is not None and not isinstance(value, dict):
        raise DataError(f"{place}: the front matter is no mapping, but {type(value).__name__}")
    return value or {}, match["body"].lstrip("\n")


def write_card(front_matter: Mapping[str, Any], body: str) -> str:
    """Join front matter and body."""
    shown = yaml.safe_dump(dict(front_matter), sort_keys=False, allow_unicode=True, width=100)
    return f"---\n{shown}---\n\n{body.strip()}\n"


def replace_section(body: str, title: str, content: str) -> str:
    """Replace the section `## title` up to the next heading of its level; append it if there is none."""
    section = f"## {title}\n\n{content.strip()}\n"
    pattern = re.compile(rf"^## {re.escape(title)}[ \t]*\n.*?(?=^##? |\Z)", re.DOTALL | re.MULTILINE)
    if pattern.search(body) is None:
        return f"{body.rstrip()}\n\n{section}"
    return pattern.sub(lambda _: f"{section}\n", body, count=1).rstrip() + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; a bar inside a cell is escaped unless it is already."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(_BAR.sub(_ESCAPED_BAR, cell) for cell in line)} |" for line in lines)
