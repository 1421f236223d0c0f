"""Rows that are made of rows: where a benchmark's question is not one row of its data set."""

import re
from collections.abc import Callable
from typing import Any

from evalsuite.foundation import DataError
from evalsuite.tasks.data import DataSource
from evalsuite.tasks.sized.pairs import json_prompt

Row = dict[str, Any]
Derive = Callable[..., list[Row]]

_HEADING = re.compile(r" = [^=]+ = \n?")


def statements(rows: list[Row], data: DataSource, *, templates: int = 1) -> list[Row]:
    """BEAR: one question per fact and template, its choices the whole answer space of the relation.

    lm-pub-quiz ranks whole statements by their summed log-probability after BOS, with the first letter in
    upper case. What all statements of a question begin with adds the same to each: it becomes the prompt,
    so that it is read once.

    Args:
        rows: BEAR's facts.
        data: where the relations are read from.
        templates: how many of a relation's templates are asked, from its first; a mean over all questions
            is then the mean over templates that BEAR's paper reports (arXiv 2404.04113).

    Returns:
        Rows {"relation", "template", "prompt", "choices", "gold"}.

    Raises:
        DataError: a relation that is not there or has fewer templates.
    """
    relations = {row["relation"]: row for row in data.rows("lm-pub-quiz/BEAR", "BEAR", "relations")}
    found = []
    for row in rows:
        relation = relations.get(row["relation"])
        if relation is None:
            raise DataError(f"lm-pub-quiz/BEAR: no relation {row['relation']} among its relations")
        if len(relation["templates"]) < templates:
            raise DataError(
                f"lm-pub-quiz/BEAR: relation {row['relation']} has {len(relation['templates'])} templates, "
                f"{templates} are asked"
            )
        found += [_statement(row, relation, number) for number in range(templates)]
    return found


def _statement(row: Row, relation: Row, number: int) -> Row:
    template = relation["templates"][number].replace("[X]", row["sub_label"])
    filled = [template.replace("[Y]", answer) for answer in relation["answer_space_labels"]]
    texts = [text[:1].upper() + text[1:] for text in filled]
    prompt = common_beginning(texts)
    return {
        "relation": row["relation"],
        "template": number,
        "prompt": prompt,
        "choices": [text[len(prompt) :] for text in texts],
        "gold": int(row["answer_idx"]),
    }


def common_beginning(texts: list[str]) -> str:
    """The whole words that all texts begin with, without the space after them."""
    first, last = min(texts), max(texts)
    end = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[: max(0, first.rfind(" ", 0, end))]


def pages(rows: list[Row], data: DataSource) -> list[Row]:
    """Wikitext: its lines joined to articles, each from its title to the next.

    Returns:
        Rows {"page"}, as in the hub's EleutherAI/wikitext_document_level.
    """
    found: list[str] = []
    for row in rows:
        if _HEADING.fullmatch(row["text"]) or not found:
            found.append("")
        found[-1] += row["text"]
    return [{"page": page} for page in found if page.strip()]


def json_pairs(rows: list[Row], data: DataSource) -> list[Row]:
    """Lost in the middle: the published pairs of keys and values as questions, in their order.

    Returns:
        Rows {"prompt", "answers", "position"}; the position is how many pairs stand before the one asked for.
    """
    found = []
    for row in rows:
        records = [(str(key), str(value)) for key, value in row["ordered_kv_records"]]
        position = [key for key, _ in records].index(row["key"])
        found.append(
            {"prompt": json_prompt(records, row["key"]), "answers": [row["value"]], "position": position}
        )
    return found


DERIVE: dict[str, Derive] = {"statements": statements, "pages": pages, "json_pairs": json_pairs}
"""By the name that a benchmark's source gives as `derive`: (rows, data source, its options) to rows."""

NEEDS: dict[str, tuple[tuple[str, str | None, str], ...]] = {
    "statements": (("lm-pub-quiz/BEAR", "BEAR", "relations"),)
}
"""What else is read, by the same name: (data set, config, split)."""
