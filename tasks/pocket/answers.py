"""Judging what a model wrote: one rule per row, nothing but the row and the response."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evalsuite.foundation import DataError, nearest
from evalsuite.tasks.pocket.instructions import follows

RULES = ("exact", "contains", "final_number", "format")

_FINAL_NUMBER = re.compile(r"The answer is (-?\d+)\b")


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a response is right, and what was read out of it (None if nothing could be)."""

    correct: bool
    extracted: str | None


def judge(row: Mapping[str, Any], response: str) -> Judgement:
    """Judge the first line of a response to a row of `rows`.

    ``exact``: the line is the answer. ``contains``: the answer stands in the line as a word (RULER's
    string match). ``final_number``: the number after the last "The answer is". ``format``: the
    instruction was followed.

    Raises:
        DataError: the row's rule is unknown.
    """
    line = response.strip().split("\n", 1)[0].strip()
    answer, rule = row["answer"], row["rule"]
    if rule == "exact":
        return Judgement(line == answer, line or None)
    if rule == "contains":
        found = re.search(rf"(?<![\w-]){re.escape(answer)}(?![\w-])", line) is not None
        return Judgement(found, answer if found else line or None)
    if rule == "final_number":
        numbers = _FINAL_NUMBER.findall(line)
        return Judgement(bool(numbers) and numbers[-1] == answer, numbers[-1] if numbers else None)
    if rule == "format":
        return Judgement(follows(line, answer, row["form"]), line or None)
    raise DataError(f"unknown answer rule '{rule}'{nearest(str(rule), RULES)}")
