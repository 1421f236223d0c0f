"""Scorers of generated responses, for benchmarks that EvalScope does not have.

A scorer is a function from a document's row and a response to values per metric, and one `SCORERS.add`; each
module below registers its own. Other packages add scorers in the entry-point group `evalsuite.scorers`.
"""

from evalsuite.protocols.scorers import longbench, pocket, recall, squad, text
from evalsuite.protocols.scorers.base import (
    SCORERS,
    ScoreFunction,
    Scorer,
    ScorerOutput,
    as_scorer,
    describe_scorer,
)

__all__ = [
    "SCORERS",
    "ScoreFunction",
    "Scorer",
    "ScorerOutput",
    "as_scorer",
    "describe_scorer",
    "longbench",
    "pocket",
    "recall",
    "squad",
    "text",
]
