"""Evaluation documents of the pocket world, as rows."""

from collections.abc import Callable
from typing import Any

from evalsuite.foundation import ConfigError, DataError, nearest
from evalsuite.tasks.synthetic.pocket import facts
from evalsuite.tasks.synthetic.pocket.question import Question, generator, split_of
from evalsuite.tasks.synthetic.pocket.registry import TASKS, PocketTask
from evalsuite.tasks.synthetic.pocket.tokenizer import count_tokens as pocket_tokens


def rows(
    task: str,
    *,
    seed: int = 0,
    count: int,
    context: int | None = None,
    count_tokens: Callable[[str], int] | None = None,
) -> list[dict[str, Any]]:
    """Return the first `count` documents of a task.

    A row is ``{"prompt", "choices", "gold", "answer", "rule", "form"}``: the literal prompt; the choices
    (each starts with a space) and the index of the correct one, or None; the expected answer, the rule that
    scores a response (`score_response`), and what rule ``format`` checks. Row i depends on (task, seed, i,
    context) only, so a shorter list is a prefix of a longer one.

    Needle tasks need `context`, in tokens of `count_tokens` (the pocket tokenizer's by default).

    Raises:
        ConfigError: an unknown task, or a context that is missing or not applicable.
        DataError: the task has fewer documents.
    """
    if task not in TASKS:
        raise ConfigError(f"pocket: unknown task '{task}'{nearest(task, TASKS)}")
    found = TASKS[task]
    if (context is None) == bool(found.contexts):
        expected = f"a context of tokens, such as {found.contexts[0]}" if found.contexts else "no context"
        raise ConfigError(f"pocket: {task} takes {expected} (found {context})")
    if found.draw is None:
        questions = _enumerated(task, seed, count)
    else:
        counter = count_tokens or pocket_tokens
        questions = [_evaluated(found, seed, index, context, counter) for index in range(count)]
    return [_row(question, seed, task, index, context) for index, question in enumerate(questions)]


def _enumerated(task: str, seed: int, count: int) -> list[Question]:
    """The first `count` of the enumerated questions, in seeded order."""
    every = facts.questions("evaluation")
    if count > len(every):
        raise DataError(f"pocket: {task} has {len(every)} documents, not {count}")
    return generator("order", task, seed).sample(every, len(every))[:count]


def _evaluated(
    task: PocketTask, seed: int, index: int, context: int | None, count_tokens: Callable[[str], int]
) -> Question:
    """Draw questions until one belongs to the evaluation split."""
    assert task.draw is not None
    rng = generator("rows", task.name, seed, index, context)
    while True:
        question = task.draw(rng, context, count_tokens)
        if split_of(question.prompt, question.answer) == "evaluation":
            return question


def _row(question: Question, seed: int, task: str, index: int, context: int | None) -> dict[str, Any]:
    choices, gold = None, None
    if question.wrong:
        order = [question.response, *question.wrong]
        generator("choices", task, seed, index, context).shuffle(order)
        choices, gold = [f" {choice}" for choice in order], order.index(question.response)
    return {
        "prompt": question.prompt,
        "choices": choices,
        "gold": gold,
        "answer": question.answer,
        "rule": question.rule,
        "form": question.form,
    }
