"""The tasks of the pocket world, one per benchmark."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from evalsuite.tasks.synthetic.pocket import arithmetic, cloze, instructions, niah, recall
from evalsuite.tasks.synthetic.pocket.harder import (
    choice,
    constraints,
    needles,
    passage,
    recite,
    three_steps,
    two_hop,
)
from evalsuite.tasks.synthetic.pocket.question import Question

Draw = Callable[[random.Random, int | None, niah.CountTokens], Question]

CONTEXTS = (128, 256, 512, 1024)
"""Default context lengths of the needle tasks, in tokens of the pocket tokenizer."""
NEEDLES_CONTEXTS = (512, 1024, 2048)
"""Those of `needles`."""


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


def _within_context(
    draw: Callable[[random.Random, int, niah.CountTokens], list[Question]],
    tokens_to_generate: int,
    rng: random.Random,
    context: int | None,
    count: niah.CountTokens,
) -> Question:
    if context is None:
        raise ValueError(f"{draw} needs a context length")
    aim = context
    while True:
        question = draw(rng, aim, count)[0]
        # Counts of the pocket tokenizer are additive, so the first try fits; other tokenizers may need more.
        excess = count(question.prompt) + tokens_to_generate - context
        if excess <= 0:
            return question
        aim -= excess


def _needle(task: niah.NeedleTask) -> Draw:
    return partial(
        _within_context,
        lambda rng, aim, count: niah.draw(rng, task, aim, count),
        task.tokens_to_generate,
    )


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
            draw=_needle(task),
        )
        for task in niah.TASKS.values()
    ),
)

_HARDER = (
    PocketTask(
        name="two_hop",
        category="reasoning",
        max_new_tokens=28,
        draw=_without_context(lambda rng: two_hop.draw(rng)[0]),
    ),
    PocketTask(
        name="three_steps", category="reasoning", max_new_tokens=64, draw=_without_context(three_steps.draw)
    ),
    PocketTask(
        name="constraints",
        category="instruction_following",
        max_new_tokens=24,
        draw=_without_context(constraints.draw),
    ),
    PocketTask(
        name="passage",
        category="recall",
        max_new_tokens=8,
        draw=_without_context(lambda rng: passage.draw(rng)[0]),
    ),
    PocketTask(
        name="choice",
        category="recall",
        max_new_tokens=8,
        draw=_without_context(lambda rng: choice.draw(rng)[0]),
    ),
    PocketTask(name="recite", category="recall", max_new_tokens=40, draw=_without_context(recite.draw)),
    PocketTask(
        name="needles",
        category="recall",
        contexts=NEEDLES_CONTEXTS,
        max_new_tokens=needles.TASK.tokens_to_generate + 3,
        draw=partial(_within_context, needles.draw, needles.TASK.tokens_to_generate),
    ),
)

TASKS = {task.name: task for task in (*_ALL, *_HARDER)}
