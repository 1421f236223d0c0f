"""The tasks of the pocket world, one per benchmark."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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


def _drawn(
    name: str, category: str, max_new_tokens: int, draw: Callable[[random.Random], Question]
) -> PocketTask:
    """A task under both protocols, whose prompts have no given length."""
    return PocketTask(
        name=name,
        category=category,
        max_new_tokens=max_new_tokens,
        draw=lambda rng, context, count: draw(rng),
    )


def _first(
    draw: Callable[[random.Random], Sequence[Question]],
) -> Callable[[random.Random], Question]:
    """The first of the questions that a draw returns; the training text has all."""
    return lambda rng: draw(rng)[0]


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
    _drawn("arithmetic", "reasoning", 48, arithmetic.draw),
    _drawn("cloze", "language_modeling", 8, _first(cloze.draw)),
    _drawn("recall", "recall", 8, _first(recall.draw)),
    replace(
        _drawn("instructions", "instruction_following", 40, instructions.draw), protocols=("generation",)
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
    _drawn("two_hop", "reasoning", 28, _first(two_hop.draw)),
    _drawn("three_steps", "reasoning", 64, three_steps.draw),
    _drawn("constraints", "instruction_following", 24, constraints.draw),
    _drawn("passage", "recall", 8, _first(passage.draw)),
    _drawn("choice", "recall", 8, _first(choice.draw)),
    _drawn("recite", "recall", 40, recite.draw),
    PocketTask(
        name="needles",
        category="recall",
        contexts=NEEDLES_CONTEXTS,
        max_new_tokens=needles.TASK.tokens_to_generate + 3,
        draw=partial(_within_context, needles.draw, needles.TASK.tokens_to_generate),
    ),
)

TASKS = {task.name: task for task in (*_ALL, *_HARDER)}
