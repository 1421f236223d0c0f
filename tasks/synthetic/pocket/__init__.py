"""The pocket world: a small synthetic world with benchmarks modelled on the large ones.

People, places, things and facts, generated from a seed without downloads. `rows` returns evaluation
documents, `corpus` training texts that never contain one of them, `score_response` scores a response.
"""

from evalsuite.tasks.synthetic.pocket.corpus import MIXTURE, corpus, texts
from evalsuite.tasks.synthetic.pocket.registry import CONTEXTS, TASKS, PocketTask
from evalsuite.tasks.synthetic.pocket.rows import rows
from evalsuite.tasks.synthetic.pocket.scoring import ScoredResponse, score_response
from evalsuite.tasks.synthetic.pocket.segments import Segment
from evalsuite.tasks.synthetic.pocket.tokenizer import build_tokenizer, count_tokens, load_tokenizer

STOP = ("\n",)
"""Stop strings of generation: every answer is one line."""

__all__ = [
    "CONTEXTS",
    "MIXTURE",
    "STOP",
    "TASKS",
    "PocketTask",
    "ScoredResponse",
    "Segment",
    "build_tokenizer",
    "corpus",
    "count_tokens",
    "load_tokenizer",
    "rows",
    "score_response",
    "texts",
]
