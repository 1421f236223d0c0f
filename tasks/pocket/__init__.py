"""The pocket world: a small synthetic world that is asked the way the large benchmarks ask.

People, places, things and facts, made from a seed without any download. `rows` gives evaluated
documents, `corpus` training texts that never contain one of them, `judge` decides on a written answer.
"""

from evalsuite.tasks.pocket.answers import Judgement, judge
from evalsuite.tasks.pocket.corpus import MIXTURE, Segment, corpus, texts
from evalsuite.tasks.pocket.kinds import CONTEXTS, KINDS, Kind
from evalsuite.tasks.pocket.rows import rows
from evalsuite.tasks.pocket.vocabulary import build_tokenizer, count_tokens, load_tokenizer

STOP = ("\n",)
"""Where generation stops: every answer is one line."""

__all__ = [
    "CONTEXTS",
    "KINDS",
    "MIXTURE",
    "STOP",
    "Judgement",
    "Kind",
    "Segment",
    "build_tokenizer",
    "corpus",
    "count_tokens",
    "judge",
    "load_tokenizer",
    "rows",
    "texts",
]
