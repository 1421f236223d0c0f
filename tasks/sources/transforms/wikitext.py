"""Wikitext: lines joined into articles."""

import re

from evalsuite.tasks.generator import Row
from evalsuite.tasks.sources.data import DataSource
from evalsuite.tasks.sources.transforms.base import TRANSFORMS, Transform

_HEADING = re.compile(r" = [^=]+ = \n?")


def pages(rows: list[Row], data: DataSource) -> list[Row]:
    """Wikitext: lines joined into articles, each from one title to the next.

    Returns:
        Rows {"page"}, as in the hub's EleutherAI/wikitext_document_level.
    """
    found: list[str] = []
    for row in rows:
        if _HEADING.fullmatch(row["text"]) or not found:
            found.append("")
        found[-1] += row["text"]
    return [{"page": page} for page in found if page.strip()]


TRANSFORMS.add("pages", Transform(pages))
