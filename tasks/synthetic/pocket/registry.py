"""The tasks of the pocket world, one per benchmark."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from evalsuite.tasks.synthetic.pocket import arithmetic, cloze, instructions, niah, recall
from evalsuite.tasks.synthetic.pocket.question import Question

Draw = Callable[[random.Random, int | None, niah.CountTokens], Question]

CONTEXTS = (128, 256, 512, 1024)
"""Default context lengths of the needle tasks, in tokens of the pocket tokenizer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PocketTask:
    """One task of the pocket world."""

    name: str
    category: str
    protocols: tuple[str, ...] = ("loglikelihood", "generation")
    contexts: tuple[int, ...] = ()
    max_new_tokens: int
    """Enough for every correct answer and its newline, the stop string."""
    draw: Draw | None = None
    """None if the questions are enumerated instead of drawn (facts)."""


def _without_context(draw: Callable[[random.Random], Question]) -> Draw:
    return lambda rng, context, count: draw(rng)


def _needle(
    task: niah.NeedleTask, rng: random.Random, context: int | None, count: niah.CountTokens
) -> Question:
    if context is None:
        raise ValueError(f"{task.name} needs a context length")
    aim = context
    while True:
        question = niah.draw(rng, task, aim, count)[0]
        # Counts of the pocket tokenizer are additive, so the first try fits; other tokenizers may need more.
        excess = count(question.prompt) + task.tokens_to_generate - context
        if excess <= 0:
            return question
        aim -= excess


_ALL = (
    PocketTask(name="facts", category="knowledge", max_new_tokens=8),
    PocketTask(
        name="arithmetic", category="reasoning", max_new_tokens=48, draw=_without_context(arithmetic.draw)
    ),
    PocketTask(
        name="cloze",
        category="language_modeling",
        max_new_tokens=8,
        draw=_without_context(lambda rng: cloze.draw(rng)[0]),
    ),
    PocketTask(
        name="recall",
        category="recall",
        max_new_tokens=8,
        draw=_without_context(lambda rng: recall.draw(rng)[0]),
    ),
    PocketTask(
        name="instructions",
        category="instruction_following",
        protocols=("generation",),
        max_new_tokens=40,
        draw=_without_context(instructions.draw),
    ),
    *(
        PocketTask(
            name=task.name,
            category="recall",
            contexts=CONTEXTS,
            max_new_tokens=task.tokens_to_generate + 3,
            draw=partial(_needle, task),
        )
        for task in niah.TASKS.values()
    ),
)

TASKS = {task.name: task for task in _ALL}
