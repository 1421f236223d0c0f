"""Reading: what a person got at a place; both occur elsewhere in the passage as well."""

import random
from typing import NamedTuple

from evalsuite.tasks.synthetic.pocket import lexicon
from evalsuite.tasks.synthetic.pocket.question import Question

PEOPLE = 4

_SENTENCES = (
    "In the {s} {n} found a {o}.",
    "At the {s} {n} bought a {o}.",
    "In the {s} {n} made a {o}.",
)


class Event(NamedTuple):
    """A person, a place and an object of two words, which occurs once."""

    name: str
    spot: str
    thing: str


class Passage(NamedTuple):
    """Events in the order of the text, and the text itself."""

    events: tuple[Event, ...]
    text: str


def draw_passage(rng: random.Random, people: int = PEOPLE) -> Passage:
    """Draw a passage in which every person is at two places, and every place has two persons."""
    names = rng.sample(lexicon.NAMES, people)
    spots = rng.sample(lexicon.SPOTS, people)
    things = rng.sample(lexicon.THINGS, 2 * people)
    events = [
        Event(name, spots[(place + turn) % people], f"{rng.choice(lexicon.QUALITIES)} {things.pop()}")
        for place, name in enumerate(names)
        for turn in range(2)
    ]
    rng.shuffle(events)
    told = (rng.choice(_SENTENCES).format(s=e.spot, n=e.name, o=e.thing) for e in events)
    return Passage(tuple(events), " ".join(told))


def others(rng: random.Random, passage: Passage, event: Event) -> list[str]:
    """Return three other objects: of the same person, at the same place, and any other."""
    near = [each.thing for each in passage.events if (each.name == event.name) != (each.spot == event.spot)]
    far = [each.thing for each in passage.events if each.thing != event.thing and each.thing not in near]
    return [*near, *rng.sample(far, min(3, len(far)))][:3]


def ask(event: Event) -> str:
    """Return the question about an event."""
    return f"Question: What has {event.name} from the {event.spot}?"


def draw(rng: random.Random, *, people: int = PEOPLE, questions: int = 1) -> list[Question]:
    """Draw a passage with questions about different events."""
    passage = draw_passage(rng, people)
    return [
        Question(
            prompt=f"{passage.text}\n{ask(event)}\nAnswer:",
            answer=event.thing,
            response=event.thing,
            rule="exact",
            wrong=tuple(others(rng, passage, event)),
        )
        for event in rng.sample(passage.events, questions)
    ]
