"""Scorers of short answers: an option by its text, an accepted answer, or one exact text."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from evalsuite.foundation import words
from evalsuite.foundation.words import english_words, first_line
from evalsuite.protocols.scorers.base import SCORERS, Scorer, ScorerOutput


def option(row: Mapping[str, Any], response: str) -> ScorerOutput:
    """Return `accuracy`: whether the option that the response's first line names is the right one.

    Case, punctuation and articles are ignored, but for options that differ in nothing else (+1 and -1). An
    option inside a longer one that is named does not count; a line that names several others, or none, names
    no answer.
    """
    line = first_line(response.strip())
    options = [str(choice).strip() for choice in row["choices"]]
    alike = Counter(map(_words, dict.fromkeys(options)))
    # Option → the text by which a line names it, and the line in that form.
    forms = {
        choice: (choice.casefold(), line.casefold())
        if alike[_words(choice)] > 1
        else (_words(choice), _words(line))
        for choice in options
    }
    named = [choice for choice in options if _holds(forms[choice][1], forms[choice][0])]
    named = [
        choice
        for choice in named
        if not any(
            forms[choice][0] != forms[each][0] and _holds(forms[each][0], forms[choice][0]) for each in named
        )
    ]
    target = options[int(row["gold"])]
    extracted = named[0] if len(named) == 1 else ""
    return ScorerOutput({"accuracy": float(extracted == target)}, extracted, target)


def _holds(text: str, part: str) -> bool:
    """Whether `part` stands in `text` as whole words; signs and decimals belong to a number."""
    return re.search(rf"(?<![\w+−-]){re.escape(part)}(?!\w|[.,]\d)", text) is not None


def answer(row: Mapping[str, Any], response: str) -> ScorerOutput:
    """Return `accuracy`: whether the first line is an accepted answer, and `contains`: whether it holds one.

    Case, surrounding punctuation, articles at the beginning and a lead such as "The answer is" are ignored.
    """
    line = first_line(response.strip())
    given, answers = _bare(line), {_bare(str(each)) for each in row["answers"]}
    contains = any(re.search(rf"(?<!\w){re.escape(each)}(?!\w)", _bare(line)) for each in answers)
    values = {"accuracy": float(given in answers), "contains": float(contains)}
    return ScorerOutput(values, given, " | ".join(map(str, row["answers"])))


def exact(row: Mapping[str, Any], response: str) -> ScorerOutput:
    """Return `accuracy`: whether the response is one of the answers, ignoring white space at line ends."""
    lines = "\n".join(line.strip() for line in response.strip().splitlines())
    answers = [str(answer) for answer in row["answers"]]
    return ScorerOutput({"accuracy": float(lines in answers)}, lines, " | ".join(answers))


def _words(text: str) -> str:
    """Words as `english_words` has them; an option that is nothing but articles or punctuation stays."""
    return " ".join(english_words(text)) or text.strip().lower()


def _bare(text: str) -> str:
    """The text that is compared; signs and points of a number stay."""
    bare = " ".join(text.casefold().split()).strip(_SURROUNDING)
    return _LEAD.sub("", bare).strip(_SURROUNDING) or bare or text.strip()


_SURROUNDING = " .,;:!?\"'“”‘’`*()[]"
_LEAD = re.compile(
    r"^(?:(?:so |thus |therefore )?(?:the )?(?:final |correct )?answer(?: is|:)\s*:?)?\s*(?:(?:a|an|the) )?"
)


for _function in (option, answer, exact):
    SCORERS.add(_function.__name__, Scorer(_function, modules=(words,)))
