"""Scorers of generated responses, for benchmarks that EvalScope does not have.

A scorer is a function from a document's row and a response to values per metric, and one `SCORERS.add`; every
module of this folder is imported and registers its own. Other packages add scorers in the entry-point group
`evalsuite.scorers`.
"""

from evalsuite.foundation.registry import import_submodules
from evalsuite.protocols.scorers.base import SCORERS, ScoreFunction, Scorer, ScorerOutput, as_scorer

import_submodules(__name__, __path__)

__all__ = ["SCORERS", "ScoreFunction", "Scorer", "ScorerOutput", "as_scorer"]
