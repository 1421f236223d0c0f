"""Scorers of short answers: one of the options by its text, or one exact text."""

from collections.abc import Mapping
from typing import Any

from evalsuite.protocols.scorers import words
from evalsuite.protocols.scorers.base import SCORERS, Scorer, ScorerOutput
from evalsuite.protocols.scorers.words import english_words, first_line


def option(row: Mapping[str, Any], response: str) -> ScorerOutput:
    """Return `accuracy`: whether the option that the response's first line names is the right one.

    Case, punctuation and articles are ignored. An option inside a longer one that is named does not count;
    a line that names several others, or none, names no answer.
    """
    line = _words(first_line(response.strip()))
    options = [str(choice).strip() for choice in row["choices"]]
    named = [choice for choice in options if f" {_words(choice)} " in f" {line} "]
    named = [
        choice
        for choice in named
        if not any(
            _words(choice) != _words(each) and f" {_words(choice)} " in f" {_words(each)} " for each in named
        )
    ]
    target = options[int(row["gold"])]
    extracted = named[0] if len(named) == 1 else ""
    return ScorerOutput({"accuracy": float(extracted == target)}, extracted, target)


def exact(row: Mapping[str, Any], response: str) -> ScorerOutput:
    """Return `accuracy`: whether the response is one of the answers, ignoring white space at line ends."""
    lines = "\n".join(line.strip() for line in response.strip().splitlines())
    answers = [str(answer) for answer in row["answers"]]
    return ScorerOutput({"accuracy": float(lines in answers)}, lines, " | ".join(answers))


def _words(text: str) -> str:
    """Words as `english_words` has them; an option that is nothing but articles or punctuation stays."""
    return " ".join(english_words(text)) or text.strip().lower()


for _function in (option, exact):
    SCORERS.add(_function.__name__, Scorer(_function, modules=(words,)))
