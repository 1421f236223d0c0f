"""Row transforms, for benchmarks whose questions are not single rows of their dataset."""

import re
from collections.abc import Callable
from typing import Any

from evalsuite.foundation import DataError
from evalsuite.tasks.sources.data import DataSource
from evalsuite.tasks.sources.span_choices import span_choices
from evalsuite.tasks.synthetic.ruler.key_value import json_prompt

Row = dict[str, Any]
Transform = Callable[..., list[Row]]

_HEADING = re.compile(r" = [^=]+ = \n?")


def statements(rows: list[Row], data: DataSource, *, templates: int = 1) -> list[Row]:
    """BEAR: one question per fact and template, its choices the complete answer space of the relation.

    lm-pub-quiz ranks complete statements by their summed log-probability after BOS, with the first letter in
    upper case. The common prefix of a question's statements contributes equally to each, so it becomes the
    prompt and is evaluated once.

    Args:
        rows: BEAR's facts.
        data: source of the relations.
        templates: number of templates per relation, from the first; the mean over all questions is then the
            mean over templates that BEAR's paper reports (arXiv 2404.04113).

    Returns:
        Rows {"relation", "template", "prompt", "choices", "gold"}.

    Raises:
        DataError: a relation that is missing or has fewer templates.
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
                f"{templates} are requested"
            )
        found += [_statement(row, relation, number) for number in range(templates)]
    return found


def _statement(row: Row, relation: Row, number: int) -> Row:
    template = relation["templates"][number].replace("[X]", row["sub_label"])
    filled = [template.replace("[Y]", answer) for answer in relation["answer_space_labels"]]
    texts = [text[:1].upper() + text[1:] for text in filled]
    prompt = common_prefix(texts)
    return {
        "relation": row["relation"],
        "template": number,
        "prompt": prompt,
        "choices": [text[len(prompt) :] for text in texts],
        "gold": int(row["answer_idx"]),
    }


def common_prefix(texts: list[str]) -> str:
    """Longest common prefix of whole words, without the trailing space."""
    first, last = min(texts), max(texts)
    end = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))
    return first[: max(0, first.rfind(" ", 0, end))]


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


def json_pairs(rows: list[Row], data: DataSource) -> list[Row]:
    """Lost in the Middle: the published key-value pairs as questions, in the published order.

    Returns:
        Rows {"prompt", "answers", "position"}; `position` is the index of the queried pair.
    """
    found = []
    for row in rows:
        records = [(str(key), str(value)) for key, value in row["ordered_kv_records"]]
        position = [key for key, _ in records].index(row["key"])
        found.append(
            {"prompt": json_prompt(records, row["key"]), "answers": [row["value"]], "position": position}
        )
    return found


TRANSFORMS: dict[str, Transform] = {
    "statements": statements,
    "pages": pages,
    "json_pairs": json_pairs,
    "span_choices": span_choices,
}
"""Name in ``source.transform`` → (rows, data source, **transform_args) → rows."""

EXTRA_SPLITS: dict[str, tuple[tuple[str, str | None, str], ...]] = {
    "statements": (("lm-pub-quiz/BEAR", "BEAR", "relations"),)
}
"""Name → further splits that the transform reads: (dataset, config, split)."""
