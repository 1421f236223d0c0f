"""Lost in the Middle: key-value pairs as questions."""

from evalsuite.tasks.generator import Row
from evalsuite.tasks.sources.data import DataSource
from evalsuite.tasks.sources.transforms.base import TRANSFORMS, Transform
from evalsuite.tasks.synthetic.ruler.key_value import json_prompt


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


TRANSFORMS.add("json_pairs", Transform(json_pairs))
