"""Judges of written answers to rows of ours: what EvalScope has no benchmark for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evalsuite.tasks import pocket


@dataclass(frozen=True, slots=True)
class Verdict:
    """Values per metric, what was read out of the response ("" for nothing), and what it should have been."""

    values: Mapping[str, float]
    extracted: str
    target: str


Judge = Callable[[Mapping[str, Any], str], Verdict]


def _pocket(row: Mapping[str, Any], response: str) -> Verdict:
    found = pocket.judge(row, response)
    return Verdict({"accuracy": float(found.correct)}, found.extracted or "", str(row["answer"]))


def _all_found(row: Mapping[str, Any], response: str) -> Verdict:
    """RULER's string match: the share of the answers that stand in the response, case aside."""
    answers = [str(answer) for answer in row["answers"]]
    found = [answer for answer in answers if answer.lower() in response.lower()]
    return Verdict({"accuracy": len(found) / len(answers)}, ", ".join(found) or response, ", ".join(answers))


JUDGES: dict[str, Judge] = {"pocket": _pocket, "all_found": _all_found}
"""By the name that a benchmark's generation block gives as `judge`: (row, response) to verdict."""
