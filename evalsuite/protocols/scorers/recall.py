"""Scorers of retrieval tasks: which of the answers a response contains."""

import re
from collections.abc import Mapping
from typing import Any

from evalsuite.protocols.scorers.base import SCORERS, Scorer, ScorerOutput

_UNPRINTABLE = re.compile(r"[\x00-\x1f]")


def all_found(row: Mapping[str, Any], response: str) -> ScorerOutput:
    """RULER's `string_match_all`: the share of the answers that the response contains, ignoring case."""
    answers, found = _found(row, response)
    return ScorerOutput(
        {"accuracy": len(found) / len(answers)}, ", ".join(found) or response, ", ".join(answers)
    )


def any_found(row: Mapping[str, Any], response: str) -> ScorerOutput:
    """RULER's `string_match_part`: whether the response contains one of the references, ignoring case.

    `share` is the value of lm-eval 0.4.13: the share of the references, duplicates included.
    """
    answers, found = _found(row, response)
    values = {"accuracy": float(bool(found)), "share": len(found) / len(answers)}
    return ScorerOutput(values, ", ".join(found) or response, " | ".join(answers))


def contains(row: Mapping[str, Any], response: str) -> ScorerOutput:
    """Based's metric (arXiv 2402.18668): whether the response contains the value, ignoring case."""
    value = str(row["value"]).strip()
    found = re.search(re.escape(value), response, re.IGNORECASE)
    return ScorerOutput({"contains": float(found is not None)}, found.group() if found else response, value)


def first_word(row: Mapping[str, Any], response: str) -> ScorerOutput:
    """Whether the first word of the response is an answer."""
    words = response.split()
    correct = bool(words) and words[0] in row["answers"]
    return ScorerOutput({"accuracy": float(correct)}, words[0] if words else "", " | ".join(row["answers"]))


def starts_with(row: Mapping[str, Any], response: str) -> ScorerOutput:
    """Whether the response begins with an answer as whole words; of a longer first word, nothing counts."""
    answers = [str(answer) for answer in row["answers"]]
    text = response.lstrip()
    begun = [each for each in answers if text.startswith(each) and not text[len(each) :][:1].isalnum()]
    extracted = max(begun, key=len) if begun else (text.split() or [""])[0]
    return ScorerOutput({"accuracy": float(bool(begun))}, extracted, " | ".join(answers))


def needle(row: Mapping[str, Any], response: str) -> ScorerOutput:
    """RULER's `string_match_all` as `accuracy`, and whether the response begins with the value as `first`."""
    scored, first = all_found(row, response), starts_with(row, response)
    return ScorerOutput(
        {"accuracy": scored.values["accuracy"], "first": first.values["accuracy"]},
        scored.extracted,
        scored.target,
    )


def _found(row: Mapping[str, Any], response: str) -> tuple[list[str], list[str]]:
    answers = [str(answer) for answer in row["answers"]]
    printed = _UNPRINTABLE.sub("\n", response.strip()).lower()
    return answers, [answer for answer in answers if answer.lower() in printed]


for _function in (all_found, any_found, contains, first_word, needle, starts_with):
    SCORERS.add(_function.__name__, Scorer(_function))
