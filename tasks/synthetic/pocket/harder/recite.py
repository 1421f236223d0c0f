"""Recitation of a list of words: every word of the response has to be recalled."""

import random

from evalsuite.tasks.synthetic.pocket import lexicon
from evalsuite.tasks.synthetic.pocket.question import Question

WORDS = 32
SHORTEST = 4


def draw(rng: random.Random, words: int = WORDS) -> Question:
    """Draw one list; its wrong recitations have two neighbors exchanged, a word replaced, or one left out."""
    listed = rng.sample(lexicon.THINGS + lexicon.QUALITIES, words + 1)
    spare = listed.pop()
    place = rng.randrange(words - 1)
    exchanged = [*listed[:place], listed[place + 1], listed[place], *listed[place + 2 :]]
    replaced = [*listed[:place], spare, *listed[place + 1 :]]
    shorter = [*listed[:place], *listed[place + 1 :]]
    return Question(
        prompt=f"Words: {' '.join(listed)}.\nAgain:",
        answer=f"{' '.join(listed)}.",
        response=f"{' '.join(listed)}.",
        rule="exact",
        wrong=tuple(f"{' '.join(each)}." for each in (exchanged, replaced, shorter)),
    )
