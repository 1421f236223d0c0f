"""Reading questions with choices: the right answer among other spans of the same passage.

Extractive reading has no choices of its own, so that log-likelihood has nothing to compare. Wrong choices are
the answers to other questions on the passage, then its names and numbers.
"""

import re
from collections import defaultdict
from typing import Any

from evalsuite.foundation import DataError, content_hash
from evalsuite.tasks.sources.data import DataSource
from evalsuite.tasks.sources.transforms.base import TRANSFORMS, Transform

NUM_WRONG = 3
_NAMES = re.compile(r"(?<![.!?]\s)(?<!^)\b[A-Z][\w'-]+(?:\s+[A-Z][\w'-]+){0,3}|\b\d[\d,.]*\d\b|\b\d\b")
_LONG_WORDS = re.compile(r"[^\W\d_]{5,}")
_PLAIN = re.compile(r"[^\w\s]|\b(?:a|an|the)\b")


def span_choices(rows: list[dict[str, Any]], data: DataSource) -> list[dict[str, Any]]:
    """SQuAD-like rows with choices.

    Args:
        rows: {"context" or "text", "question", "answers"}; `answers` is a list of texts, or has it as `text`.

    Returns:
        Rows {"context", "question", "answers": {"text"}, "prompt", "choices", "gold"}.

    Raises:
        DataError: a passage without another span, or a row without an answer.
    """
    by_passage: dict[str, list[str]] = defaultdict(list)
    read = [_read(row) for row in rows]
    for context, _, answers in read:
        by_passage[context] += answers[:1]
    return [_with_choices(*each, by_passage[each[0]]) for each in read]


def _read(row: dict[str, Any]) -> tuple[str, str, list[str]]:
    answers = row["answers"]["text"] if isinstance(row["answers"], dict) else row["answers"]
    if not len(answers):
        raise DataError(f"span_choices: the question '{row['question'][:60]}' has no answer")
    context = row["context"] if "context" in row else row["text"]
    return str(context), str(row["question"]).strip(), [str(answer) for answer in answers]


def _with_choices(context: str, question: str, answers: list[str], others: list[str]) -> dict[str, Any]:
    key = [context, question]
    wrong: list[str] = []
    for candidates in (others, _NAMES.findall(context), _LONG_WORDS.findall(context)):
        for candidate in sorted(dict.fromkeys(candidates), key=lambda text: content_hash([*key, text])):
            known = [*answers, *wrong]
            if (
                len(wrong) < NUM_WRONG
                and _words(candidate)
                and not any(_overlap(candidate, each) for each in known)
            ):
                wrong.append(candidate)
    if not wrong:
        raise DataError(f"span_choices: the passage of '{question[:60]}' has no span besides the answer")
    choices = sorted([answers[0], *wrong], key=lambda text: content_hash([*key, "order", text]))
    return {
        "context": context,
        "question": question,
        "answers": {"text": answers},
        "prompt": f"{context}\nQuestion: {question}\nAnswer:",
        "choices": [f" {choice}" for choice in choices],
        "gold": choices.index(answers[0]),
    }


def _overlap(one: str, other: str) -> bool:
    """Whether two spans share a word, so that both could be right."""
    return not _words(one).isdisjoint(_words(other))


def _words(text: str) -> set[str]:
    return set(_PLAIN.sub(" ", text.lower()).split())


TRANSFORMS.add("span_choices", Transform(span_choices))
