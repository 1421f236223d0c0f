"""Single needle in a haystack (S-NIAH of RULER, arXiv 2404.06654), in the words of the pocket world."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle

from evalsuite.foundation import ConfigError
from evalsuite.tasks.synthetic.pocket import lexicon
from evalsuite.tasks.synthetic.pocket.question import Question

CountTokens = Callable[[str], int]

NOISE = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)

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

NUMBER_DIGITS = 7
STRING_GROUPS = (4, 4, 4)


@dataclass(frozen=True, slots=True)
class NeedleTask:
    """Haystack and kind of value of a task."""

    name: str
    haystack: str
    value: str
    tokens_to_generate: int
    """Tokens reserved for the answer, with the space before and the newline after it."""


TASKS = {
    task.name: task
    for task in (
        NeedleTask("niah_single_1", haystack="noise", value="number", tokens_to_generate=NUMBER_DIGITS + 2),
        NeedleTask("niah_single_2", haystack="prose", value="number", tokens_to_generate=NUMBER_DIGITS + 2),
        NeedleTask(
            "niah_single_3",
            haystack="prose",
            value="string",
            tokens_to_generate=sum(STRING_GROUPS) + len(STRING_GROUPS) + 1,
        ),
    )
}


def draw(
    rng: random.Random, task: NeedleTask, context: int, count_tokens: CountTokens, *, needles: int = 1
) -> list[Question]:
    """Hide `needles` values in filler; return one question about each.

    The prompt and the tokens reserved for the answer fit `context`, and one more filler sentence would not.

    Raises:
        ConfigError: the context is too short for the question itself.
    """
    keys = [f"{rng.choice(lexicon.QUALITIES)} {thing}" for thing in rng.sample(lexicon.THINGS, needles)]
    values = [_value(rng, task) for _ in keys]
    header = (
        f"Some special magic {task.value}s are hidden within the following text. Make sure to memorize it. "
        f"I will quiz you about the {task.value}s afterwards.\n"
    )
    hidden = [
        f"One of the special magic {task.value}s for {key} is: {value}."
        for key, value in zip(keys, values, strict=True)
    ]
    questions = [
        f"\nWhat is the special magic {task.value} for {key} mentioned in the provided text? "
        f"The special magic {task.value} for {key} mentioned in the provided text is"
        for key in keys
    ]
    # Pieces are counted with a leading space; the first has none, which does not change its count.
    room = context - task.tokens_to_generate - count_tokens(header) - max(map(count_tokens, questions))
    room -= sum(count_tokens(f" {needle}") for needle in hidden)
    if room < 0:
        raise ConfigError(
            f"{task.name}: {context} tokens are too few for the question; use at least {context - room}"
        )
    parts = list(_filler(rng, task, room, count_tokens))
    for needle in hidden:
        parts.insert(rng.randint(0, len(parts)), needle)
    text = header + " ".join(parts)
    return [
        Question(
            prompt=text + question,
            answer=value,
            response=value,
            rule="contains",
            wrong=tuple(_others(rng, task, values)),
        )
        for question, value in zip(questions, values, strict=True)
    ]


def _filler(rng: random.Random, task: NeedleTask, room: int, count_tokens: CountTokens) -> Iterator[str]:
    units = cycle(NOISE) if task.haystack == "noise" else iter(lambda: sentence(rng), None)
    for unit in units:
        room -= count_tokens(f" {unit}")
        if room < 0:
            return
        yield unit


def _value(rng: random.Random, task: NeedleTask) -> str:
    if task.value == "number":
        return str(rng.randint(10 ** (NUMBER_DIGITS - 1), 10**NUMBER_DIGITS - 1))
    return "-".join("".join(rng.choice("0123456789abcdef") for _ in range(size)) for size in STRING_GROUPS)


def _others(rng: random.Random, task: NeedleTask, taken: list[str]) -> list[str]:
    others: list[str] = []
    while len(others) < 3:
        value = _value(rng, task)
        if value not in taken and value not in others:
            others.append(value)
    return others


def sentence(rng: random.Random) -> str:
    """Draw one sentence of unrelated prose."""
    name, other = rng.sample(lexicon.NAMES, 2)
    thing, another = rng.sample(lexicon.THINGS, 2)
    spot, next_spot = rng.sample(lexicon.SPOTS, 2)
    quality, second = rng.sample(lexicon.QUALITIES, 2)
    people_and_things = {"n": name, "m": other, "o": thing, "u": another}
    places = {"s": spot, "t": next_spot, "q": quality, "p": second, "w": rng.choice(lexicon.TIMES)}
    return rng.choice(_SENTENCES).format(**people_and_things, **places)
