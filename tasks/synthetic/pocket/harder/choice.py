"""Questions about a passage with four numbered options, as in ARC and MMLU: the response names one."""

import random

from evalsuite.tasks.synthetic.pocket.harder.passage import PEOPLE, ask, draw_passage, others
from evalsuite.tasks.synthetic.pocket.question import Question

NAMES = ("1", "2", "3", "4")
"""Digits, since each of them is one token; letters are not."""


def draw(
    rng: random.Random, *, people: int = PEOPLE, questions: int = 1, options: int = len(NAMES)
) -> list[Question]:
    """Draw a passage with questions about different events; the wrong responses are the other names."""
    passage = draw_passage(rng, people)
    found = []
    for event in rng.sample(passage.events, questions):
        names = NAMES[:options]
        things = [event.thing, *others(rng, passage, event)[: options - 1]]
        rng.shuffle(things)
        listed = "\n".join(f"{name}. {thing}" for name, thing in zip(names, things, strict=True))
        answer = names[things.index(event.thing)]
        found.append(
            Question(
                prompt=f"{passage.text}\n{ask(event)}\n{listed}\nAnswer:",
                answer=answer,
                response=answer,
                rule="exact",
                wrong=tuple(name for name in names if name != answer),
            )
        )
    return found
