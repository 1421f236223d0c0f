"""Scorers of generated responses to benchmarks that EvalScope does not have."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from evalsuite.protocols import longbench
from evalsuite.tasks.synthetic import pocket


@dataclass(frozen=True, slots=True)
class ScorerOutput:
    """Values per metric, the extracted answer ("" for none), and the target."""

    values: Mapping[str, float]
    extracted: str
    target: str


Scorer = Callable[[Mapping[str, Any], str], ScorerOutput]

_UNPRINTABLE = re.compile(r"[\x00-\x1f]")


def _pocket(row: Mapping[str, Any], response: str) -> ScorerOutput:
    found = pocket.score_response(row, response)
    return ScorerOutput({"accuracy": float(found.correct)}, found.extracted or "", str(row["answer"]))


def _all_found(row: Mapping[str, Any], response: str) -> ScorerOutput:
    """RULER's `string_match_all`: the share of the answers that the response contains, ignoring case."""
    answers, found = _found(row, response)
    return ScorerOutput(
        {"accuracy": len(found) / len(answers)}, ", ".join(found) or response, ", ".join(answers)
    )


def _any_found(row: Mapping[str, Any], response: str) -> ScorerOutput:
    """RULER's `string_match_part`: whether the response contains one of the references, ignoring case.

    `share` is the value of lm-eval 0.4.13: the share of the references, duplicates included.
    """
    answers, found = _found(row, response)
    values = {"accuracy": float(bool(found)), "share": len(found) / len(answers)}
    return ScorerOutput(values, ", ".join(found) or response, " | ".join(answers))


def _found(row: Mapping[str, Any], response: str) -> tuple[list[str], list[str]]:
    answers = [str(answer) for answer in row["answers"]]
    printed = _UNPRINTABLE.sub("\n", response.strip()).lower()
    return answers, [answer for answer in answers if answer.lower() in printed]


def _contains(row: Mapping[str, Any], response: str) -> ScorerOutput:
    """Based's metric (arXiv 2402.18668): whether the response contains the value, ignoring case."""
    value = str(row["value"]).strip()
    found = re.search(re.escape(value), response, re.IGNORECASE)
    return ScorerOutput({"contains": float(found is not None)}, found.group() if found else response, value)


def _first_word(row: Mapping[str, Any], response: str) -> ScorerOutput:
    """Whether the first word of the response is an answer."""
    words = response.split()
    correct = bool(words) and words[0] in row["answers"]
    return ScorerOutput({"accuracy": float(correct)}, words[0] if words else "", " | ".join(row["answers"]))


def _longbench(
    name: str, metric: longbench.Metric, row: Mapping[str, Any], response: str, *, line: bool = False
) -> ScorerOutput:
    read = longbench.first_line(response) if line else response
    # Indentation is part of code.
    read = read if name == "code_sim" else read.strip()
    references = [str(answer) for answer in row["answers"]]
    return ScorerOutput(
        {name: longbench.best(metric, read, references)}, read.strip(), " | ".join(references)
    )


def _classification(row: Mapping[str, Any], response: str) -> ScorerOutput:
    metric = partial(longbench.classification, classes=longbench.classes_of(dict(row)))
    return _longbench("classification", metric, row, response, line=True)


SCORERS: dict[str, Scorer] = {
    "pocket": _pocket,
    "all_found": _all_found,
    "any_found": _any_found,
    "contains": _contains,
    "first_word": _first_word,
    "qa_f1": partial(_longbench, "qa_f1", longbench.qa_f1),
    "qa_f1_line": partial(_longbench, "qa_f1", longbench.qa_f1, line=True),
    "qa_f1_zh": partial(_longbench, "qa_f1_zh", longbench.qa_f1_zh),
    "rouge": partial(_longbench, "rouge", longbench.rouge),
    "rouge_line": partial(_longbench, "rouge", longbench.rouge, line=True),
    "rouge_zh": partial(_longbench, "rouge_zh", longbench.rouge_zh),
    "classification": _classification,
    "count": partial(_longbench, "count", longbench.count),
    "retrieval": partial(_longbench, "retrieval", longbench.retrieval),
    "retrieval_zh": partial(_longbench, "retrieval_zh", longbench.retrieval_zh),
    "code_sim": partial(_longbench, "code_sim", longbench.code_sim),
}
"""Key `scorer` of a benchmark's generation block → scorer."""
