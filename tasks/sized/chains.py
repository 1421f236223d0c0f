"""Variable tracking: chains of assignments in noise (RULER, arXiv 2404.06654, task `vt`).

One chain of four hops, five names of one value, after a solved example with names of three letters.
Template, noise, chain, example and the 30 tokens for an answer are RULER's (its spelling included).
"""

import random
import string
from typing import Any

from evalsuite.tasks.sized.fitting import CountTokens, fill

RESERVE = 30
HOPS = 4
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
TEMPLATE = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n"
    "Question: Find all variables that are assigned the value {value} in the text above. Answer: According "
    "to the chain(s) of variable assignment in the text above, {number} variables are assgined the value "
    "{value}, they are:"
)
EXAMPLE_TOKENS = 500
"""Length of the solved example."""
EXAMPLE_FROM = 1024
"""Contexts below have no example: it would take up most of them. RULER itself begins at 4,096."""
_GRID = 1_000_000


class Chain:
    """A chain and the places of its statements, before the noise around it has its length."""

    def __init__(self, seed: str, letters: int) -> None:
        rng = random.Random(seed)
        names: dict[str, None] = {}
        while len(names) < HOPS + 1:
            names["".join(rng.choices(string.ascii_uppercase, k=letters))] = None
        self.names = list(names)
        self.value = str(rng.randint(10_000, 99_998))
        self._places = sorted(rng.sample(range(_GRID), HOPS + 1))

    @property
    def statements(self) -> list[str]:
        """The assignments in their order."""
        names = zip(self.names, self.names[1:], strict=False)
        later = [f"VAR {name} = VAR {before} " for before, name in names]
        return [f"VAR {self.names[0]} = {self.value}", *later]

    def positions(self, units: int) -> list[int]:
        """How many lines of noise stand before each statement; all different."""
        found: list[int] = []
        for left, place in zip(range(HOPS, -1, -1), self._places, strict=True):
            earliest = found[-1] + 1 if found else 0
            found.append(min(max(place * units // _GRID, earliest), units - 1 - left))
        return found

    def prompt(self, units: int) -> str:
        """The question with this many lines of noise."""
        lines = [NOISE] * units
        for at, (position, statement) in enumerate(zip(self.positions(units), self.statements, strict=True)):
            lines.insert(position + at, statement)
        context = " ".join(lines).replace(". \n", ".\n")
        return TEMPLATE.format(context=context, value=self.value, number=HOPS + 1)


def draw(seed: str, context: int, count: CountTokens) -> dict[str, Any]:
    """Return one document, {} if the context does not hold it.

    Returns:
        A row {"prompt", "answers", "units", "positions"}.
    """
    least = HOPS + 1
    example = ""
    if context >= EXAMPLE_FROM:
        solved = Chain(f"{seed} example", letters=3)
        lines = fill(solved.prompt, count, EXAMPLE_TOKENS - RESERVE, least=least, most=None)
        if lines < 0:
            return {}
        # RULER's answer prefix ends in a space, to which it adds another, and two pairs of line breaks.
        example = f"{solved.prompt(lines)}  {' '.join(solved.names)}\n\n\n\n"
    chain = Chain(seed, letters=5)
    units = fill(
        lambda number: example + chain.prompt(number), count, context - RESERVE, least=least, most=None
    )
    if units < 0:
        return {}
    return {
        "prompt": example + chain.prompt(units),
        "answers": chain.names,
        "units": units,
        "positions": chain.positions(units),
    }
