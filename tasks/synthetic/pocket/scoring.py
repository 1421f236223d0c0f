"""Scores responses by the rule of their row."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evalsuite.foundation import DataError, nearest
from evalsuite.tasks.synthetic.pocket.instructions import follows

RULES = ("exact", "contains", "final_number", "final_answer", "format")

_FINAL_NUMBER = re.compile(r"The answer is (-?\d+)\b")
_FINAL_ANSWER = re.compile(r"The answer is (\w+)\b")


@dataclass(frozen=True, slots=True)
class ScoredResponse:
    """Whether a response is correct, and the extracted answer (None if extraction failed)."""

    correct: bool
    extracted: str | None


def score_response(row: Mapping[str, Any], response: str) -> ScoredResponse:
    """Score the first line of a response to a row of `rows`.

    ``exact``: the line is the answer. ``contains``: the line contains the answer as a word (RULER's
    string match). ``final_number``: the number after the last "The answer is"; ``final_answer``: the
    word after it. ``format``: the
    instruction was followed.

    Raises:
        DataError: an unknown rule.
    """
    line = response.strip().split("\n", 1)[0].strip()
    answer, rule = row["answer"], row["rule"]
    if rule == "exact":
        return ScoredResponse(line == answer, line or None)
    if rule == "contains":
        found = re.search(rf"(?<![\w-]){re.escape(answer)}(?![\w-])", line) is not None
        return ScoredResponse(found, answer if found else line or None)
    if rule in ("final_number", "final_answer"):
        found_answers = (_FINAL_NUMBER if rule == "final_number" else _FINAL_ANSWER).findall(line)
        return ScoredResponse(
            bool(found_answers) and found_answers[-1] == answer, found_answers[-1] if found_answers else None
        )
    if rule == "format":
        return ScoredResponse(follows(line, answer, row["form"]), line or None)
    raise DataError(f"unknown scoring rule '{rule}'{nearest(str(rule), RULES)}")
