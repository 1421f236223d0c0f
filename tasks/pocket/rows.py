"""The evaluated documents of the pocket world as plain rows."""

from collections.abc import Callable
from typing import Any

from evalsuite.foundation import ConfigError, DataError, nearest
from evalsuite.tasks.pocket import facts
from evalsuite.tasks.pocket.drawing import generator, split_of
from evalsuite.tasks.pocket.kinds import KINDS, Kind
from evalsuite.tasks.pocket.question import Question
from evalsuite.tasks.pocket.vocabulary import count_tokens as pocket_tokens


def rows(
    kind: str,
    *,
    seed: int = 0,
    count: int,
    context: int | None = None,
    count_tokens: Callable[[str], int] | None = None,
) -> list[dict[str, Any]]:
    """Return the first `count` documents of a benchmark.

    A row is ``{"prompt", "choices", "gold", "answer", "rule", "form"}``: the literal text given to the
    model; the continuations to rank (each starts with a space) and the index of the right one, or None;
    what a generated answer must come to, the rule that judges it (`judge`) and what rule ``format``
    checks. Row i depends on (kind, seed, i, context) alone, so that a shorter list is the beginning of
    a longer one.

    `context` is needed by needles, in tokens of `count_tokens` (the pocket tokenizer's by default).

    Raises:
        ConfigError: an unknown kind, a context where there is none, or none where one is needed.
        DataError: the world does not hold that many documents of this kind.
    """
    if kind not in KINDS:
        raise ConfigError(f"pocket: unknown benchmark '{kind}'{nearest(kind, KINDS)}")
    asked = KINDS[kind]
    if (context is None) == bool(asked.contexts):
        wanted = f"a context of tokens, such as {asked.contexts[0]}" if asked.contexts else "no context"
        raise ConfigError(f"pocket: {kind} takes {wanted} (found {context})")
    if asked.draw is None:
        questions = _known(kind, seed, count)
    else:
        counter = count_tokens or pocket_tokens
        questions = [_evaluated(asked, seed, index, context, counter) for index in range(count)]
    return [_row(question, seed, kind, index, context) for index, question in enumerate(questions)]


def _known(kind: str, seed: int, count: int) -> list[Question]:
    """The first `count` of the questions that are known beforehand, in the order of the seed."""
    known = facts.questions("evaluation")
    if count > len(known):
        raise DataError(f"pocket: {kind} has {len(known)} documents, not {count}")
    return generator("order", kind, seed).sample(known, len(known))[:count]


def _evaluated(
    kind: Kind, seed: int, index: int, context: int | None, count_tokens: Callable[[str], int]
) -> Question:
    """Draw until the question belongs to the evaluation split."""
    assert kind.draw is not None
    rng = generator("rows", kind.name, seed, index, context)
    while True:
        question = kind.draw(rng, context, count_tokens)
        if split_of(question.prompt, question.answer) == "evaluation":
            return question


def _row(question: Question, seed: int, kind: str, index: int, context: int | None) -> dict[str, Any]:
    choices, gold = None, None
    if question.wrong:
        order = [question.response, *question.wrong]
        generator("choices", kind, seed, index, context).shuffle(order)
        choices, gold = [f" {choice}" for choice in order], order.index(question.response)
    return {
        "prompt": question.prompt,
        "choices": choices,
        "gold": gold,
        "answer": question.answer,
        "rule": question.rule,
        "form": question.form,
    }
