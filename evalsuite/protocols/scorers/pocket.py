"""Scorer of the pocket benchmarks."""

from collections.abc import Mapping
from typing import Any

from evalsuite.protocols.scorers.base import SCORERS, Scorer, ScorerOutput
from evalsuite.tasks.synthetic.pocket import instructions, scoring


def pocket(row: Mapping[str, Any], response: str) -> ScorerOutput:
    """Return `accuracy`: whether the response is the answer, as the task of the row demands."""
    found = scoring.score_response(row, response)
    return ScorerOutput({"accuracy": float(found.correct)}, found.extracted or "", str(row["answer"]))


SCORERS.add("pocket", Scorer(pocket, modules=(scoring, instructions)))
