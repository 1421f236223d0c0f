"""Judges of written answers to rows of ours: what EvalScope has no benchmark for."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from evalsuite.protocols import longbench
from evalsuite.tasks import pocket


@dataclass(frozen=True, slots=True)
class Verdict:
    """Values per metric, what was read out of the response ("" for nothing), and what it should have been."""

    values: Mapping[str, float]
    extracted: str
    target: str


Judge = Callable[[Mapping[str, Any], str], Verdict]

_UNPRINTABLE = re.compile(r"[\x00-\x1f]")


def _pocket(row: Mapping[str, Any], response: str) -> Verdict:
    found = pocket.judge(row, response)
    return Verdict({"accuracy": float(found.correct)}, found.extracted or "", str(row["answer"]))


def _all_found(row: Mapping[str, Any], response: str) -> Verdict:
    """RULER's `string_match_all`: the share of the answers that stand in the response, case aside."""
    answers, found = _found(row, response)
    return Verdict({"accuracy": len(found) / len(answers)}, ", ".join(found) or response, ", ".join(answers))


def _any_found(row: Mapping[str, Any], response: str) -> Verdict:
    """RULER's `string_match_part`: whether one of the references stands in the response, case aside.

    `share` is what lm-eval 0.4.13 gives under that name: the share of the references, repeated ones
    counted again.
    """
    answers, found = _found(row, response)
    values = {"accuracy": float(bool(found)), "share": len(found) / len(answers)}
    return Verdict(values, ", ".join(found) or response, " | ".join(answers))


def _found(row: Mapping[str, Any], response: str) -> tuple[list[str], list[str]]:
    answers = [str(answer) for answer in row["answers"]]
    printed = _UNPRINTABLE.sub("\n", response.strip()).lower()
    return answers, [answer for answer in answers if answer.lower() in printed]


def _contains(row: Mapping[str, Any], response: str) -> Verdict:
    """Based's metric (arXiv 2402.18668): whether the value stands in the response, case aside."""
    value = str(row["value"]).strip()
    found = re.search(re.escape(value), response, re.IGNORECASE)
    return Verdict({"contains": float(found is not None)}, found.group() if found else response, value)


def _first_word(row: Mapping[str, Any], response: str) -> Verdict:
    """Whether the response begins with the answer, as a word."""
    words = response.split()
    right = bool(words) and words[0] in row["answers"]
    return Verdict({"accuracy": float(right)}, words[0] if words else "", " | ".join(row["answers"]))


def _longbench(
    name: str, metric: longbench.Metric, row: Mapping[str, Any], response: str, *, line: bool = False
) -> Verdict:
    read = longbench.first_line(response) if line else response
    # The indentation of code counts.
    read = read if name == "code_sim" else read.strip()
    references = [str(answer) for answer in row["answers"]]
    return Verdict({name: longbench.best(metric, read, references)}, read.strip(), " | ".join(references))


def _classification(row: Mapping[str, Any], response: str) -> Verdict:
    metric = partial(longbench.classification, classes=longbench.classes_of(dict(row)))
    return _longbench("classification", metric, row, response, line=True)


JUDGES: dict[str, Judge] = {
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
"""By the name that a benchmark's generation block gives as `judge`: (row, response) to verdict."""
