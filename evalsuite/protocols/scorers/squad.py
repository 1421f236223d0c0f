"""SQuADv2's metrics (Rajpurkar et al. 2018, arXiv 1806.03822; its `evaluate-v2.0.py`)."""

from collections.abc import Mapping
from typing import Any

from evalsuite.foundation import words
from evalsuite.foundation.words import english_words, f1_of_words
from evalsuite.protocols.scorers.base import SCORERS, Scorer, ScorerOutput

UNANSWERABLE = "unanswerable"
"""lm-eval's target of a question without an answer, in its few-shot examples."""


def squad(row: Mapping[str, Any], response: str) -> ScorerOutput:
    """Return `f1` over words and `exact`, ignoring case, punctuation and articles; the best answer counts.

    A question without an answer demands an empty response, as in lm-eval's squadv2, whose threshold for
    declining to answer (1.0) no probability exceeds.
    """
    texts = [str(text) for text in row["answers"]["text"]]
    # As in the official script, answers without a word do not count.
    answers = [found for text in texts if (found := english_words(text))] or [[]]
    given = english_words(response)
    scores = [
        f1_of_words(given, answer) if given and answer else float(given == answer) for answer in answers
    ]
    values = {"f1": max(scores), "exact": float(given in answers)}
    return ScorerOutput(values, response.strip(), " | ".join(dict.fromkeys(texts)) or UNANSWERABLE)


SCORERS.add("squad", Scorer(squad, modules=(words,)))
