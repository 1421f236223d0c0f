"""The gap as a sum: every document that the teacher alone has right under generation has one cause.

    gap = Σ causes of what is lost under generation − what is gained there − drop under log-likelihood

so the parts add up exactly, whatever the scores are. Fractional scores count by their difference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evalsuite.foundation.taxonomy import FAILURES, OUTCOME_MEANINGS

_OUTCOMES = FAILURES[::-1]
_VALUES = ("modal option", "another value of the passage", "another value")
CAUSES = (*(OUTCOME_MEANINGS[name].title for name in _OUTCOMES), *_VALUES)
"""In the order in which they are decided: the first that applies is the cause."""
OFFSETS = ("gained under generation", "drop under log-likelihood")
MAX_OPTIONS = 6
"""A benchmark with at most this many different answers of the teacher asks for the name of an option."""


@dataclass(frozen=True, slots=True)
class Part:
    """One term of the gap, in fractions of 1; the terms of a decomposition sum to the gap."""

    name: str
    share: float


@dataclass(frozen=True, slots=True)
class Responses:
    """Generated responses of one checkpoint. Each [documents].

    Args:
        outcome: as `evalsuite.protocols.outcomes` names it.
        extracted: the answer, in lower case; empty for none.
    """

    outcome: np.ndarray
    extracted: np.ndarray


def causes(own: Responses, teacher: Responses, prompts: Sequence[str], benchmarks: np.ndarray) -> np.ndarray:
    """Return the cause of each document's loss, if it is one, as an index into `CAUSES`. [documents]

    *Modal option*: on a benchmark of options, the response is the option that this student names most, and
    the teacher names another. *Another value of the passage*: the answer occurs in the prompt.
    """
    modal: dict[int, str] = {}
    for index in np.unique(benchmarks):
        here = benchmarks == index
        if len({each for each in teacher.extracted[here] if each}) <= MAX_OPTIONS:
            named, counts = np.unique(
                [each for each in own.extracted[here] if each] or [""], return_counts=True
            )
            modal[int(index)] = str(named[counts.argmax()])
    found = np.empty(len(benchmarks), dtype=np.int64)
    for place, (outcome, answer) in enumerate(zip(own.outcome, own.extracted, strict=True)):
        if outcome in _OUTCOMES:
            cause = OUTCOME_MEANINGS[outcome].title
        elif outcome == "error" or not answer:
            cause = OUTCOME_MEANINGS["extraction_failed"].title
        elif modal.get(int(benchmarks[place])) == answer:
            cause = _VALUES[0]
        else:
            cause = _VALUES[1 if answer in prompts[place].lower() else 2]
        found[place] = CAUSES.index(cause)
    return found


def decompose(
    student: Mapping[str, np.ndarray],
    teacher: Mapping[str, np.ndarray],
    cause: np.ndarray,
    weights: np.ndarray,
) -> list[Part]:
    """Return the terms of a student's gap, in the order of `CAUSES` and `OFFSETS`.

    Args:
        student, teacher: protocol → scores. [documents]
        cause: of each document, as `causes` returns it. [documents]
        weights: of each document, summing to 1. [documents]
    """
    change = teacher["generation"] - student["generation"]
    lost = np.maximum(change, 0) * weights
    parts = [Part(name, float(lost[cause == index].sum())) for index, name in enumerate(CAUSES)]
    gained = float((np.maximum(-change, 0) * weights).sum())
    loglikelihood = float((teacher["loglikelihood"] - student["loglikelihood"]) @ weights)
    return [*parts, Part(OFFSETS[0], -gained), Part(OFFSETS[1], -loglikelihood)]


def collapsed(outcome: np.ndarray) -> bool:
    """Return whether a student loops in more than half of its responses. [documents]"""
    return bool((outcome == "looped").mean() > 0.5)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement with the tokens of the teacher's responses at one position, over documents."""

    position: int
    documents: int
    forced: float
    """Share where the teacher's token is the student's argmax after the teacher's tokens."""
    free: float
    """Share where the student's own response has that token there."""
    logprob: float
    """Mean log-probability of the teacher's token after the teacher's tokens, in nats."""


def exposure(rows: Sequence[Mapping[str, Sequence[float]]]) -> list[Agreement]:
    """Return agreement by position, from rows of `evalsuite.reports.studies.training_choices.exposure`.

    Exposure is the difference between `forced` and `free`: what a student would still get right if it had
    not left the teacher's response before.
    """
    longest = max((len(row["forced"]) for row in rows), default=0)
    found = []
    for position in range(longest):
        here = [row for row in rows if len(row["forced"]) > position]
        columns = (
            np.array([row[name][position] for row in here], dtype=float)
            for name in ("forced", "free", "logprob")
        )
        forced, free, logprob = (float(column.mean()) for column in columns)
        found.append(Agreement(position, len(here), forced, free, logprob))
    return found
