"""Two facts of a passage to be combined: a person's town, and what that town has."""

import random

from evalsuite.tasks.synthetic.pocket import lexicon
from evalsuite.tasks.synthetic.pocket.question import Question

PEOPLE = 6

_HOMES = ("{x} lives in {y}.", "{x} has a house in {y}.", "{x} is at home in {y}.")
_SECOND = {
    "river": (
        lexicon.RIVERS,
        ("{x} is on the {y}.", "{x} has a bridge over the {y}."),
        "Which river runs through the home town of {x}?",
    ),
    "product": (
        lexicon.PRODUCTS,
        ("{x} is known for {y}.", "{x} sells {y}."),
        "What do people make in the home town of {x}?",
    ),
}


def draw(rng: random.Random, *, people: int = PEOPLE, questions: int = 1) -> list[Question]:
    """Draw a passage about people and their towns, with questions about different people.

    The response states both facts. Of its wrong variants one has the right town and the value of another, the
    others, if there are more than two people, begin with the wrong town. Facts of the passage need not be
    those of the world.
    """
    names = rng.sample(lexicon.NAMES, people)
    towns = rng.sample(lexicon.TOWNS, people)
    kind = rng.choice(tuple(_SECOND))
    values, statements, question = _SECOND[kind]
    values = tuple(rng.sample(values, people))
    told = [rng.choice(_HOMES).format(x=name, y=town) for name, town in zip(names, towns, strict=True)]
    told += [
        rng.choice(statements).format(x=town, y=value) for town, value in zip(towns, values, strict=True)
    ]
    rng.shuffle(told)
    found = []
    for place in rng.sample(range(people), questions):
        others = rng.sample([each for each in range(people) if each != place], min(3, people - 1))
        variants = [(place, others[0]), *((each, each) for each in others[1:])]
        found.append(
            Question(
                prompt=f"{' '.join(told)}\nQuestion: {question.format(x=names[place])}\nWorking:",
                answer=values[place],
                response=_working(kind, names[place], towns[place], values[place]),
                rule="final_answer",
                wrong=tuple(
                    _working(kind, names[place], towns[town], values[value]) for town, value in variants
                ),
            )
        )
    return found


def _working(kind: str, name: str, town: str, value: str) -> str:
    second = f"{town} is on the {value}." if kind == "river" else f"{town} is known for {value}."
    return f"{name} lives in {town}. {second} The answer is {value}."
