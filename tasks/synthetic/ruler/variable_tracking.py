"""Variable tracking: chains of assignments in filler (RULER, arXiv 2404.06654, task `vt`).

One chain of four hops, five names of one value, after a solved example with names of three letters.
Template (including its spelling), filler, chain, example and the 30 answer tokens are RULER's.
"""

import random
import string
from typing import Any

from evalsuite.tasks.synthetic.ruler.fit_to_length import CountTokens, fit_to_length

TOKENS_TO_GENERATE = 30
HOPS = 4
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n"
TEMPLATE = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\n"
    "Question: Find all variables that are assigned the value {value} in the text above. Answer: According "
    "to the chain(s) of variable assignment in the text above, {number} variables are assgined the value "
    "{value}, they are:"
)
EXAMPLE_TOKENS = 500
"""Length of the solved example in tokens."""
EXAMPLE_MIN_CONTEXT = 1024
"""Shorter contexts have no example, which would take up most of them. RULER starts at 4,096 tokens."""
_DEPTH_GRID = 1_000_000


class Chain:
    """A chain and the relative positions of its statements, independent of the amount of filler."""

    def __init__(self, seed: str, letters: int) -> None:
        rng = random.Random(seed)
        names: dict[str, None] = {}
        while len(names) < HOPS + 1:
            names["".join(rng.choices(string.ascii_uppercase, k=letters))] = None
        self.names = list(names)
        self.value = str(rng.randint(10_000, 99_998))
        self._depths = sorted(rng.sample(range(_DEPTH_GRID), HOPS + 1))

    @property
    def statements(self) -> list[str]:
        """The assignments in order."""
        names = zip(self.names, self.names[1:], strict=False)
        later = [f"VAR {name} = VAR {before} " for before, name in names]
        return [f"VAR {self.names[0]} = {self.value}", *later]

    def positions(self, units: int) -> list[int]:
        """Number of filler lines before each statement; all different."""
        found: list[int] = []
        for left, depth in zip(range(HOPS, -1, -1), self._depths, strict=True):
            earliest = found[-1] + 1 if found else 0
            found.append(min(max(depth * units // _DEPTH_GRID, earliest), units - 1 - left))
        return found

    def prompt(self, units: int) -> str:
        """The question with `units` lines of filler."""
        lines = [FILLER] * units
        for at, (position, statement) in enumerate(zip(self.positions(units), self.statements, strict=True)):
            lines.insert(position + at, statement)
        context = " ".join(lines).replace(". \n", ".\n")
        return TEMPLATE.format(context=context, value=self.value, number=HOPS + 1)


def draw(seed: str, context: int, count_tokens: CountTokens) -> dict[str, Any]:
    """Draw one document; {} if the context is too short.

    Returns:
        A row {"prompt", "answers", "units", "positions"}.
    """
    min_units = HOPS + 1
    example = ""
    if context >= EXAMPLE_MIN_CONTEXT:
        solved = Chain(f"{seed} example", letters=3)
        lines = fit_to_length(
            solved.prompt,
            count_tokens,
            EXAMPLE_TOKENS - TOKENS_TO_GENERATE,
            min_units=min_units,
            max_units=None,
        )
        if lines < 0:
            return {}
        # RULER's answer prefix ends in a space, followed by another one and four line breaks.
        example = f"{solved.prompt(lines)}  {' '.join(solved.names)}\n\n\n\n"
    chain = Chain(seed, letters=5)
    units = fit_to_length(
        lambda count: example + chain.prompt(count),
        count_tokens,
        context - TOKENS_TO_GENERATE,
        min_units=min_units,
        max_units=None,
    )
    if units < 0:
        return {}
    return {
        "prompt": example + chain.prompt(units),
        "answers": chain.names,
        "units": units,
        "positions": chain.positions(units),
    }
