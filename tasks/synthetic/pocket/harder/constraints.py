"""Instructions with several constraints at once: which words, in which order, separated and marked how."""

import random
from dataclasses import dataclass, replace

from evalsuite.tasks.synthetic.pocket import lexicon
from evalsuite.tasks.synthetic.pocket.instructions import BRACKETS, SEPARATORS
from evalsuite.tasks.synthetic.pocket.question import Question

WORDS = range(3, 7)


@dataclass(frozen=True, slots=True)
class _Demand:
    """What the response has to be."""

    words: tuple[str, ...]
    count: int
    is_reversed: bool
    separator: str
    marked: str
    brackets: str
    ending: str

    def instruction(self) -> str:
        number = "" if self.count == len(self.words) else f" first {lexicon.NUMBER_WORDS[self.count]} of"
        order = " in reverse order" if self.is_reversed else ""
        return (
            f"Write the{number} words{order}, with {self.separator} between, with {self.brackets} around "
            f"{self.marked} and then {self.ending}: {' '.join(self.words)}."
        )

    def response(self) -> str:
        chosen = list(self.words[: self.count])
        if self.is_reversed:
            chosen.reverse()
        left, right = BRACKETS[self.brackets]
        marked = [f"{left} {word} {right}" if word == self.marked else word for word in chosen]
        return f"{SEPARATORS[self.separator].join(marked)} {self.ending}"


def draw(rng: random.Random) -> Question:
    """Draw one instruction; every wrong response violates one of its constraints."""
    words = tuple(rng.sample(lexicon.THINGS, rng.choice(WORDS)))
    count = rng.randint(2, len(words))
    separator, brackets = rng.choice(tuple(SEPARATORS)), rng.choice(tuple(BRACKETS))
    demand = _Demand(
        words=words,
        count=count,
        is_reversed=rng.random() < 0.5,
        separator=separator,
        marked=rng.choice(words[:count]),
        brackets=brackets,
        ending=rng.choice(lexicon.QUALITIES),
    )
    violations = [
        replace(demand, is_reversed=not demand.is_reversed),
        replace(demand, separator=rng.choice([each for each in SEPARATORS if each != separator])),
        replace(demand, brackets=rng.choice([each for each in BRACKETS if each != brackets])),
        replace(demand, marked=rng.choice([word for word in words[:count] if word != demand.marked])),
        replace(demand, ending=rng.choice([word for word in lexicon.QUALITIES if word != demand.ending])),
    ]
    return Question(
        prompt=f"Instruction: {demand.instruction()}\nAnswer:",
        answer=demand.response(),
        response=demand.response(),
        rule="exact",
        wrong=tuple(each.response() for each in rng.sample(violations, 3)),
    )
