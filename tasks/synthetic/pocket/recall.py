"""Key-value recall: a list of pairs, then one of its keys (multi-query associative recall)."""

import random

from evalsuite.tasks.synthetic.pocket import lexicon
from evalsuite.tasks.synthetic.pocket.question import Question

PAIRS = 24


def draw(rng: random.Random, *, pairs: int = PAIRS, queries: int = 1) -> list[Question]:
    """Draw one list of pairs and query `queries` of its keys; all questions share the list.

    The wrong answers are up to three other values of the list.
    """
    keys = rng.sample(lexicon.THINGS, pairs)
    values = rng.sample(lexicon.QUALITIES, pairs)
    listed = ", ".join(f"{key} {value}" for key, value in zip(keys, values, strict=True))
    queried = rng.sample(range(pairs), queries)
    drawn = []
    for place in queried:
        others = values[:place] + values[place + 1 :]
        drawn.append(
            Question(
                prompt=f"Pairs: {listed}.\nQuery: {keys[place]}",
                answer=values[place],
                response=values[place],
                rule="exact",
                wrong=tuple(rng.sample(others, min(3, len(others)))),
            )
        )
    return drawn
