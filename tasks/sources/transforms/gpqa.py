"""GPQA: the four answers of a question in one list, in an order that its content decides."""

from evalsuite.foundation import content_hash
from evalsuite.tasks.generator import Row
from evalsuite.tasks.sources.data import DataSource
from evalsuite.tasks.sources.transforms.base import TRANSFORMS, Transform

ANSWERS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def gpqa_choices(rows: list[Row], data: DataSource) -> list[Row]:
    """GPQA: adds `choices`, ordered by a hash of question and answer, and `gold`, the index of the right one.

    lm-eval shuffles them by a generator that has no seed, so that two runs differ.
    """
    return [_with_choices(row) for row in rows]


def _with_choices(row: Row) -> Row:
    order = sorted(ANSWERS, key=lambda column: content_hash([row["Question"], column, row[column]]))
    return row | {"choices": [row[column].strip() for column in order], "gold": order.index(ANSWERS[0])}


TRANSFORMS.add("gpqa_choices", Transform(gpqa_choices))
