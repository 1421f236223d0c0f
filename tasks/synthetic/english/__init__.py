"""Short English tasks with one right answer: arithmetic and instructions on lists of words.

`rows` returns evaluation documents, `questions` training questions. The split of a question is a function of
its text, so that no evaluated document is ever a training text.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from evalsuite.foundation import ConfigError, nearest
from evalsuite.tasks.synthetic.english import arithmetic, instructions
from evalsuite.tasks.synthetic.pocket.question import Question, generator, split_of

TASKS: dict[str, Callable[[Random], Question]] = {
    "arithmetic": arithmetic.draw,
    "instructions": instructions.draw,
}
"""Task → draws one question."""


def rows(task: str, *, seed: int = 0, count: int) -> list[dict[str, Any]]:
    """Return the first `count` documents of a task, which are all different.

    A row is ``{"prompt", "choices", "gold", "answers"}``: the literal prompt; the choices (each starts with
    a space) and the index of the right one; the right answer, as a list.

    Raises:
        ConfigError: an unknown task.
    """
    return [
        _row(question, generator("english", "choices", task, seed, index))
        for index, question in zip(range(count), questions(task, seed=seed, split="evaluation"), strict=False)
    ]


def questions(task: str, *, seed: int = 0, split: str = "train") -> Iterator[Question]:
    """Yield the different questions of one split, without end unless the task runs out of them.

    Raises:
        ConfigError: an unknown task.
    """
    if task not in TASKS:
        raise ConfigError(f"english: unknown task '{task}'{nearest(task, TASKS)}")
    rng, seen = generator("english", task, seed, split), set[str]()
    while True:
        question = TASKS[task](rng)
        if question.prompt not in seen and split_of(question.prompt, question.answer) == split:
            seen.add(question.prompt)
            yield question


def _row(question: Question, rng: Random) -> dict[str, Any]:
    choices = [question.answer, *question.wrong]
    rng.shuffle(choices)
    return {
        "prompt": question.prompt,
        "choices": [f" {choice}" for choice in choices],
        "gold": choices.index(question.answer),
        "answers": [question.answer],
    }
