"""Four needles of one kind in a haystack, one of which is the answer (MK-NIAH of RULER, arXiv 2404.06654)."""

import random
from dataclasses import replace

from evalsuite.tasks.synthetic.pocket import niah
from evalsuite.tasks.synthetic.pocket.question import Question

NEEDLES = 4
TASK = niah.NeedleTask("needles", haystack="prose", value="number", tokens_to_generate=niah.NUMBER_DIGITS + 2)


def draw(
    rng: random.Random, context: int, count_tokens: niah.CountTokens, *, needles: int = NEEDLES
) -> list[Question]:
    """Return one question about each needle; its wrong responses are values of the others.

    Raises:
        ConfigError: the context is too short for the question itself.
    """
    drawn = niah.draw(rng, TASK, context, count_tokens, needles=needles)
    answers = [question.answer for question in drawn]
    return [
        replace(question, wrong=tuple(answer for answer in answers if answer != question.answer))
        for question in drawn
    ]
