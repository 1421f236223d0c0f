"""Idle prose of the world: sentences about nothing anybody asks about."""

import random

from evalsuite.tasks.pocket import lexicon

_SENTENCES = (
    "{n} walked from the {s} to the {t} in the {w}.",
    "The {q} {o} was still in the {s}.",
    "{n} and {m} talked about the {o} for a while.",
    "It was a {q} {w} and nobody was at the {s}.",
    "A {q} {o} is better than a {p} {u}.",
    "{n} looked at the {o} and said nothing.",
    "Every {w} the people met at the {s}.",
    "In the {s} there was a {q} {o} and a {u}.",
    "{n} wanted to sell the {q} {o}.",
    "The {s} was {q} and the {t} was {p}.",
    "When the rain came, {n} went to the {s}.",
    "Nobody asked {n} about the {q} {o}.",
    "{n} gave {m} a {o} and went home.",
    "The old road goes by the {s} and the {t}.",
)


def sentence(rng: random.Random) -> str:
    """Draw one sentence."""
    name, other = rng.sample(lexicon.NAMES, 2)
    thing, another = rng.sample(lexicon.THINGS, 2)
    spot, next_spot = rng.sample(lexicon.SPOTS, 2)
    quality, second = rng.sample(lexicon.QUALITIES, 2)
    people_and_things = {"n": name, "m": other, "o": thing, "u": another}
    places = {"s": spot, "t": next_spot, "q": quality, "p": second, "w": rng.choice(lexicon.TIMES)}
    return rng.choice(_SENTENCES).format(**people_and_things, **places)
