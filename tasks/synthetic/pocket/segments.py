"""Training texts as segments: prompts, and the responses that a loss on completions counts."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from evalsuite.tasks.synthetic.pocket.question import Question, Split, split_of


class Segment(NamedTuple):
    """A span of a training text; `answer` marks responses."""

    text: str
    answer: bool


Writer = Callable[[random.Random, Split, int], list[Segment]]
"""(generator, split, length of the longest haystack in tokens) → one training text."""


def segments(questions: Sequence[Question]) -> list[Segment]:
    """Return questions, each followed by its response."""
    return [
        segment
        for question in questions
        for segment in (Segment(question.prompt, False), Segment(f" {question.response}\n", True))
    ]


def draw_of_split(rng: random.Random, split: Split, draw: Callable[[random.Random], Question]) -> Question:
    """Draw questions until one belongs to the split."""
    while True:
        question = draw(rng)
        if split_of(question.prompt, question.answer) == split:
            return question


def with_shared_prefix(
    questions: Sequence[Question], split: Split, limit: int, *, prefix: str | None = None
) -> list[Segment]:
    """Return the shared prefix once, then up to `limit` questions that belong to the split.

    Args:
        prefix: what all prompts begin with; default: all but the last line of the first.
    """
    owned = [question for question in questions if split_of(question.prompt, question.answer) == split]
    shared = questions[0].prompt.rsplit("\n", 1)[0] + "\n" if prefix is None else prefix
    if not owned:
        # No question belongs to the split; the shared prefix is still training text.
        return [Segment(shared, False)]
    first, *others = owned[:limit]
    tail = [
        Question(
            prompt=each.prompt.rsplit("\n", 1)[1] if prefix is None else each.prompt[len(prefix) :],
            answer=each.answer,
            response=each.response,
            rule=each.rule,
        )
        for each in others
    ]
    return segments([first, *tail])
