"""Short stories that lack their last word; as in LAMBADA the whole story is needed to find it."""

import random

from evalsuite.tasks.pocket import lexicon
from evalsuite.tasks.pocket.question import Question

CHARACTERS = 4

_OPENINGS = (
    "{n} found a {o} in the {s}.",
    "{n} bought a {o} at the {s}.",
    "{n} made a {q} {o} in the {s}.",
    "{n} went for a {o} to the {s}.",
    "{n} came back with a {o} from the {s}.",
)

_RAIN = "Then the rain came and they all went home."

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

# Whose a thing is stands before it, and finding that takes a head that looks backwards from a match; a
# teacher of four layers stays at chance there. The corpus tells of it, the benchmark does not ask it.
ASKED = ("thing", "spot")
TOLD = tuple(_ENDINGS)


def draw(
    rng: random.Random,
    *,
    characters: int = CHARACTERS,
    endings: int = 1,
    sorts: tuple[str, ...] = ASKED,
) -> list[Question]:
    """Draw a story about people, their things and places, with one or more ways to end it.

    `sorts` says what may be left out: the thing, the spot, the name.

    The wrong answers are the others of the same sort, so with fewer than four characters there are fewer.
    """
    names = rng.sample(lexicon.NAMES, characters)
    things = rng.sample(lexicon.THINGS, characters)
    spots = rng.sample(lexicon.SPOTS, characters)
    story = [
        rng.choice(_OPENINGS).format(n=name, o=thing, s=spot, q=rng.choice(lexicon.QUALITIES))
        for name, thing, spot in zip(names, things, spots, strict=True)
    ]
    if rng.random() < 0.5:
        story.append(_RAIN)
    told = " ".join(story)
    values = {"thing": things, "name": names, "spot": spots}
    asked = rng.sample([(sort, place) for sort in sorts for place in range(characters)], endings)
    return [
        Question(
            prompt=f"{told}\n{rng.choice(_ENDINGS[sort]).format(n=names[place], o=things[place])}",
            answer=values[sort][place],
            response=values[sort][place],
            rule="exact",
            wrong=tuple(values[sort][:place] + values[sort][place + 1 :]),
        )
        for sort, place in asked
    ]
