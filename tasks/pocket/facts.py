"""Questions about the facts of the world: knowledge that must be in the weights."""

import random
from functools import cache

from evalsuite.tasks.pocket.drawing import Split, generator, split_of
from evalsuite.tasks.pocket.question import Question
from evalsuite.tasks.pocket.world import Fact, facts


def ask(fact: Fact, wording: int) -> Question:
    """Ask for a fact in one of the wordings of its relation; the wrong answers are fixed by the question."""
    prompt = f"Question: {fact.relation.questions[wording].format(x=fact.subject)}\nAnswer:"
    others = [value for value in fact.relation.values if value != fact.value]
    wrong = generator("facts", prompt).sample(others, 3)
    return Question(prompt=prompt, answer=fact.value, response=fact.value, rule="exact", wrong=tuple(wrong))


def state(fact: Fact, rng: random.Random) -> str:
    """Tell a fact as a sentence."""
    return rng.choice(fact.relation.statements).format(x=fact.subject, y=fact.value)


@cache
def questions(split: Split) -> tuple[Question, ...]:
    """Return every question about a fact that belongs to `split`.

    A fact asked in one wording for evaluation is told, and asked in other wordings, in training.
    """
    asked = (ask(fact, wording) for fact in facts() for wording in range(len(fact.relation.questions)))
    return tuple(question for question in asked if split_of(question.prompt, question.answer) == split)
