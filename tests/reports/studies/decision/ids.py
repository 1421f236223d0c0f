"""Edits that give the documents of a synthetic run the ids that the study needs."""

from collections import Counter
from collections.abc import Callable

from tests.reports.score_edits import Row


def with_common_ids() -> Callable[[int, Row], Row]:
    """An edit that numbers the documents of every checkpoint and context."""
    seen: Counter[tuple[str, int]] = Counter()

    def edit(number: int, row: Row) -> Row:
        place = row["checkpoint"], row["context"]
        seen[place] += 1
        return row | {"doc_id": f"{seen[place]:05d}"}

    return edit
