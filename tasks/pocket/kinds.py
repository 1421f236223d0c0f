"""What the pocket world can be asked: one entry per benchmark."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from evalsuite.tasks.pocket import arithmetic, cloze, instructions, needles, recall
from evalsuite.tasks.pocket.question import Question

Draw = Callable[[random.Random, int | None, needles.CountTokens], Question]

CONTEXTS = (128, 256, 512, 1024)
"""Tokens of the pocket tokenizer at which needles are asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One benchmark of the pocket world."""

    name: str
    category: str
    protocols: tuple[str, ...] = ("loglikelihood", "generation")
    contexts: tuple[int, ...] = ()
    max_new_tokens: int
    """Enough for every right answer and its newline, which is where generation stops."""
    draw: Draw | None = None
    """None where all questions are known beforehand (facts)."""


def _free(draw: Callable[[random.Random], Question]) -> Draw:
    return lambda rng, context, count: draw(rng)


def _needle(
    style: needles.Style, rng: random.Random, context: int | None, count: needles.CountTokens
) -> Question:
    if context is None:
        raise ValueError(f"{style.name} needs a context length")
    aim = context
    while True:
        question = needles.draw(rng, style, aim, count)[0]
        # Counts of the pocket tokenizer add up, so this ends at once; another tokenizer's may not.
        excess = count(question.prompt) + style.reserve - context
        if excess <= 0:
            return question
        aim -= excess


_ALL = (
    Kind(name="facts", category="knowledge", max_new_tokens=8),
    Kind(name="arithmetic", category="reasoning", max_new_tokens=48, draw=_free(arithmetic.draw)),
    Kind(
        name="cloze",
        category="language_modeling",
        max_new_tokens=8,
        draw=_free(lambda rng: cloze.draw(rng)[0]),
    ),
    Kind(name="recall", category="recall", max_new_tokens=8, draw=_free(lambda rng: recall.draw(rng)[0])),
    Kind(
        name="instructions",
        category="instruction_following",
        protocols=("generation",),
        max_new_tokens=40,
        draw=_free(instructions.draw),
    ),
    *(
        Kind(
            name=style.name,
            category="recall",
            contexts=CONTEXTS,
            max_new_tokens=style.reserve + 3,
            draw=partial(_needle, style),
        )
        for style in needles.STYLES.values()
    ),
)

KINDS = {kind.name: kind for kind in _ALL}
