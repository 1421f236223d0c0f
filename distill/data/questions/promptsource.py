"""Passages, questions, options and answers out of instruction data that was rendered from templates.

What a template's expression does not match, and questions whose answer is not among their options, are left
out: the file of instructions itself remains a source of the recipe.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from evalsuite.distill.data.questions.formats import TrainingQuestion, choice, reading, yes_or_no
from evalsuite.foundation.strict_yaml import read_yaml

MAX_CONTEXT_WORDS = 500
MAX_ANSWER_WORDS = 12
_BULLET = re.compile(r"(?:^|\n)\s*- ")
_LETTER = re.compile(r"^\(([A-H])\) ")
_PREFACE = re.compile(r"(?:[^.?!:]*\b(?:question|Q|reasoning|rationale|answer)\b[^.?!:]*[.:!] )+", re.I)
_CONCLUSION = re.compile(
    r"\s*(?:(?:So|Therefore|Thus|Hence),? )?(?:the )?(?:final )?answer(?: is|:)\s*(.*?)\.?$", re.I
)


@cache
def _templates() -> list[tuple[str, re.Pattern[str], re.Pattern[str]]]:
    table: dict[str, dict[str, str]] = read_yaml(Path(__file__).with_suffix(".yaml"))
    return [
        (kind, re.compile(source), re.compile(pattern, re.DOTALL))
        for kind, patterns in table.items()
        for source, pattern in patterns.items()
    ]


def questions(rows: Iterator[dict[str, Any]]) -> Iterator[TrainingQuestion]:
    """Yield the questions of conversations {"messages", "source"}, each once."""
    seen: set[tuple[str, str, str]] = set()
    for row in rows:
        found = parse(row["source"], row["messages"][0]["content"], row["messages"][1]["content"])
        if found is not None and (key := (found.kind, found.prompt, found.answer)) not in seen:
            seen.add(key)
            yield found


def parse(source: str, text: str, response: str) -> TrainingQuestion | None:
    """The question of one conversation; None if its template is not known, or what it gives is not usable."""
    for kind, name, pattern in _templates():
        if name.fullmatch(source) and (match := pattern.fullmatch(text.strip())) is not None:
            parts = {key: value.strip() for key, value in match.groupdict().items() if value is not None}
            answer, reason = response.strip(), ""
            if source.startswith("flan-cot/"):
                reason, answer = _conclusion(answer)
            return _MAKE[kind](source, parts, answer, reason)
    return None


def _reading(source: str, parts: dict[str, str], answer: str, reason: str) -> TrainingQuestion | None:
    context = parts["context"]
    if not answer or answer.lower() not in context.lower() or not _is_short(context, answer):
        return None
    return reading(context, parts["question"], answer, source)


def _choice(source: str, parts: dict[str, str], answer: str, reason: str) -> TrainingQuestion | None:
    if "one" in parts:
        options = [parts["one"], parts["two"]]
    elif "comma_options" in parts:
        options = [option.strip() for option in parts["comma_options"].split(", ")]
    else:
        options = [option.strip() for option in _BULLET.split(parts["options"]) if option.strip()]
    if reason and options:
        # The instruction to think follows the last option, on its line or the next.
        options[-1] = re.split(r"\n| (?=[A-Z][a-z]+[ ,'])", options[-1])[0].strip()
        letters = {match[1]: option[match.end() :] for option in options if (match := _LETTER.match(option))}
        if letters:
            options, answer = list(letters.values()), letters.get(answer.strip("()"), "")
    context = parts.get("context", "")
    if answer not in options or len(set(options)) < len(options) or not _is_short(context, ""):
        return None
    question = _PREFACE.sub("", parts["question"], count=1) if reason else parts["question"]
    return choice(context, question, options, answer, source)


def _yes_or_no(source: str, parts: dict[str, str], answer: str, reason: str) -> TrainingQuestion | None:
    answer = answer.lower()
    context = parts.get("context", reason)
    if answer not in ("yes", "no") or not _is_short(context, ""):
        return None
    if claim := parts.get("claim", parts.get("quoted")):
        question = f"is it true that {claim.rstrip('.')}"
    elif "suggested" in parts:
        question = f"is {parts['suggested']} the answer to: {parts['question']}"
    else:
        question = parts["question"][:1].lower() + parts["question"][1:]
    return yes_or_no(context, question, answer, source)


_MAKE = {"reading": _reading, "choice": _choice, "yes_or_no": _yes_or_no}


def _conclusion(response: str) -> tuple[str, str]:
    """The reasons and the answer of a chain of thought; no answer if it has another form."""
    reason, mark, last = re.sub(r"\s*\n\s*", " ", response).rpartition(". ")
    match = _CONCLUSION.fullmatch(last)
    if not mark or match is None:
        return "", ""
    return f"{reason}.", match[1]


def _is_short(context: str, answer: str) -> bool:
    return len(context.split()) <= MAX_CONTEXT_WORDS and len(answer.split()) <= MAX_ANSWER_WORDS
