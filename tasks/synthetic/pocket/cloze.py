"""Short stories without their last word, which needs the whole story, as in LAMBADA."""

import random

from evalsuite.tasks.synthetic.pocket import lexicon
from evalsuite.tasks.synthetic.pocket.question import Question

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

# An owner precedes the thing owned, and retrieving it needs attention from a match to what precedes it; a
# four-layer teacher stays at chance there. Names therefore end training stories only.
EVALUATED = ("thing", "spot")
TRAINED = tuple(_ENDINGS)


def draw(
    rng: random.Random,
    *,
    characters: int = CHARACTERS,
    endings: int = 1,
    sorts: tuple[str, ...] = EVALUATED,
) -> list[Question]:
    """Draw a story about people, their things and places, with one or more endings.

    Args:
        characters: people in the story; the wrong answers are the other values of the same sort.
        endings: number of questions, which share the story.
        sorts: what may be left out: thing, spot or name.
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
    text = " ".join(story)
    values = {"thing": things, "name": names, "spot": spots}
    chosen = rng.sample([(sort, place) for sort in sorts for place in range(characters)], endings)
    return [
        Question(
            prompt=f"{text}\n{rng.choice(_ENDINGS[sort]).format(n=names[place], o=things[place])}",
            answer=values[sort][place],
            response=values[sort][place],
            rule="exact",
            wrong=tuple(values[sort][:place] + values[sort][place + 1 :]),
        )
        for sort, place in chosen
    ]
