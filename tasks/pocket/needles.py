"""Single needles in a haystack (S-NIAH of RULER, arXiv 2404.06654), in the words of the pocket world."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle

from evalsuite.foundation import ConfigError
from evalsuite.tasks.pocket import lexicon
from evalsuite.tasks.pocket.prose import sentence
from evalsuite.tasks.pocket.question import Question

CountTokens = Callable[[str], int]

NOISE = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)

NUMBER_DIGITS = 7
STRING_GROUPS = (4, 4, 4)


@dataclass(frozen=True, slots=True)
class Style:
    """What the haystack is made of and what kind of value is hidden in it."""

    name: str
    haystack: str
    value: str
    reserve: int
    """Tokens kept free for the answer, with the space before it and the newline after it."""


STYLES = {
    style.name: style
    for style in (
        Style("niah_single_1", haystack="noise", value="number", reserve=NUMBER_DIGITS + 2),
        Style("niah_single_2", haystack="prose", value="number", reserve=NUMBER_DIGITS + 2),
        Style(
            "niah_single_3",
            haystack="prose",
            value="string",
            reserve=sum(STRING_GROUPS) + len(STRING_GROUPS) + 1,
        ),
    )
}


def draw(
    rng: random.Random, style: Style, context: int, count_tokens: CountTokens, *, needles: int = 1
) -> list[Question]:
    """Hide `needles` values in filler and ask for each of them.

    The prompt and the answer's reserve fit `context` tokens, and one more filler sentence would not.

    Raises:
        ConfigError: the question alone does not fit the context.
    """
    keys = [f"{rng.choice(lexicon.QUALITIES)} {thing}" for thing in rng.sample(lexicon.THINGS, needles)]
    values = [_value(rng, style) for _ in keys]
    header = (
        f"Some special magic {style.value}s are hidden within the following text. Make sure to memorize it. "
        f"I will quiz you about the {style.value}s afterwards.\n"
    )
    hidden = [
        f"One of the special magic {style.value}s for {key} is: {value}."
        for key, value in zip(keys, values, strict=True)
    ]
    questions = [
        f"\nWhat is the special magic {style.value} for {key} mentioned in the provided text? "
        f"The special magic {style.value} for {key} mentioned in the provided text is"
        for key in keys
    ]
    # A piece is counted with the space before it; the first has none, which changes no count of ours.
    room = context - style.reserve - count_tokens(header) - max(map(count_tokens, questions))
    room -= sum(count_tokens(f" {needle}") for needle in hidden)
    if room < 0:
        raise ConfigError(
            f"{style.name}: {context} tokens do not hold the question itself; use at least {context - room}"
        )
    pieces = list(_filler(rng, style, room, count_tokens))
    for needle in hidden:
        pieces.insert(rng.randint(0, len(pieces)), needle)
    text = header + " ".join(pieces)
    return [
        Question(
            prompt=text + question,
            answer=value,
            response=value,
            rule="contains",
            wrong=tuple(_others(rng, style, values)),
        )
        for question, value in zip(questions, values, strict=True)
    ]


def _filler(rng: random.Random, style: Style, room: int, count_tokens: CountTokens) -> Iterator[str]:
    units = cycle(NOISE) if style.haystack == "noise" else iter(lambda: sentence(rng), None)
    for unit in units:
        room -= count_tokens(f" {unit}")
        if room < 0:
            return
        yield unit


def _value(rng: random.Random, style: Style) -> str:
    if style.value == "number":
        return str(rng.randint(10 ** (NUMBER_DIGITS - 1), 10**NUMBER_DIGITS - 1))
    return "-".join("".join(rng.choice("0123456789abcdef") for _ in range(size)) for size in STRING_GROUPS)


def _others(rng: random.Random, style: Style, taken: list[str]) -> list[str]:
    others: list[str] = []
    while len(others) < 3:
        value = _value(rng, style)
        if value not in taken and value not in others:
            others.append(value)
    return others
