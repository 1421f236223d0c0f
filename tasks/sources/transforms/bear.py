"""BEAR: one question per fact and template."""

from evalsuite.foundation import DataError
from evalsuite.tasks.benchmark import SplitRef
from evalsuite.tasks.generator import Row
from evalsuite.tasks.sources.data import DataSource
from evalsuite.tasks.sources.transforms.base import TRANSFORMS, Transform


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


TRANSFORMS.add(
    "statements",
    Transform(statements, inputs=(SplitRef(dataset="lm-pub-quiz/BEAR", config="BEAR", split="relations"),)),
)
