"""Short stories that lack their last word; as in LAMBADA the whole story is needed to find it."""

import random

from evalsuite.tasks.pocket import lexicon
from evalsuite.tasks.pocket.question import Question

CHARACTERS = 4

_OPENINGS = (
    "{n} found a {o} in the {s}.",
    "In the {s}, {n} bought a {o}.",
    "{n} made a {o} at the {s}.",
    "{n} went to the {s} and came back with a {o}.",
    "At the {s} somebody gave {n} a {o}.",
)

_ENDINGS = {
    "thing": (
        "In the end {n} went home with the",
        "That night {n} was still looking at the",
        "Many years later {n} still had the",
    ),
    "name": (
        "In the end everybody said that the {o} belonged to",
        "The {o} was always with",
    ),
    "spot": (
        "Before the night came, {n} went back to the",
        "Many years later {n} still thought about the",
    ),
}


def draw(rng: random.Random) -> Question:
    """Draw a story about four people, their things and places, that ends on one of them."""
    names = rng.sample(lexicon.NAMES, CHARACTERS)
    things = rng.sample(lexicon.THINGS, CHARACTERS)
    spots = rng.sample(lexicon.SPOTS, CHARACTERS)
    story = [
        rng.choice(_OPENINGS).format(n=name, o=thing, s=spot)
        for name, thing, spot in zip(names, things, spots, strict=True)
    ]
    kind = rng.choice(list(_ENDINGS))
    told = rng.randrange(CHARACTERS)
    values = {"thing": things, "name": names, "spot": spots}[kind]
    ending = rng.choice(_ENDINGS[kind]).format(n=names[told], o=things[told])
    story += ["Then the rain came and they all went to the inn.", ending] if rng.random() < 0.5 else [ending]
    wrong = tuple(value for place, value in enumerate(values) if place != told)
    answer = values[told]
    return Question(prompt=" ".join(story), answer=answer, response=answer, rule="exact", wrong=wrong)
