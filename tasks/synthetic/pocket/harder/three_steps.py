"""Word problems of three steps: one of `arithmetic`, and a further event."""

import random

from evalsuite.tasks.synthetic.pocket import lexicon
from evalsuite.tasks.synthetic.pocket.arithmetic import LARGEST, STORIES, apply, problem
from evalsuite.tasks.synthetic.pocket.question import Question


def draw(rng: random.Random) -> Question:
    """Draw one problem; all intermediate results are within two digits."""
    who, other = rng.sample(lexicon.NAMES, 2)
    text, steps = rng.choice(STORIES)(rng, who, other, rng.choice(lexicon.GOODS))
    story, question = text.rsplit(". ", 1)
    middle = apply(steps[-1])
    # Zero allows no subtraction, and the largest result no addition.
    if middle == 0 or (middle < LARGEST and rng.random() < 0.5):
        amount = rng.randint(1, LARGEST - middle)
        event, sign = f"Then somebody brings {amount} more.", "+"
    else:
        amount = rng.randint(1, middle)
        event, sign = f"Then somebody buys {amount}.", "-"
    return problem(rng, f"{story}. {event} {question}", [*steps, (middle, sign, amount)])
