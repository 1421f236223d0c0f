"""What several rooms share: protocols, categories, perplexities, recall numbers, outcomes of a response.

Standard library only, so that the infer phase can import it.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

Protocol = Literal["loglikelihood", "generation"]
"""How a benchmark is evaluated: by the log-likelihoods of its choices, or by generated text."""
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
PROTOCOL_TITLES = {"loglikelihood": "log-likelihood", "generation": "generation"}
"""Protocol → its name in texts."""

Category = Literal[
    "knowledge",
    "common_sense",
    "reasoning",
    "instruction_following",
    "recall",
    "language_modeling",
    "other",
]
"""What a benchmark tests; `other` marks one's own questions, and imported benchmarks that
evalsuite does not know."""
CATEGORIES: tuple[Category, ...] = get_args(Category)

PERPLEXITIES: dict[str, str | None] = {
    "perplexity": None,
    "word_perplexity": "words",
    "byte_perplexity": "bytes",
}
"""Metrics that are losses: recorded as the document's negative log-likelihood in nats (lower is better), and
reported as the mean over the named units; None counts each document once."""


@dataclass(frozen=True, slots=True)
class RecallNumber:
    """A number of the report's recall section: the mean over the benchmarks that name it."""

    title: str
    source: str = ""
    """Where it is defined, such as ``arXiv 2404.06654``."""
    tasks: tuple[str, ...] = ()
    """Benchmarks without which the mean is undefined; empty: those of the run."""
    against_recovery: bool = False
    """Whether students are also placed by this number and their recovery."""


class Outcome(NamedTuple):
    """How a response ended."""

    title: str
    """Name in tables and figures."""
    meaning: str
    names_answer: bool
    """Whether the extracted answer is one that the response gives to its question."""
    is_failure: bool
    """Whether it is a failure mode of generation."""


OUTCOME_MEANINGS = {
    "ok": Outcome("answered", "an answer was extracted, or the response is right", True, False),
    "guessed": Outcome("guessed", "the harness took a choice that the response does not name", False, True),
    "ran_on": Outcome(
        "ran on", "the response goes on with a next question, and scores more without it", False, True
    ),
    "extraction_failed": Outcome(
        "no answer extracted", "no answer was extracted from the response", False, True
    ),
    "truncated": Outcome(
        "truncated", "the token limit cut the response, which has no answer or is scored whole", True, True
    ),
    "looped": Outcome("looped", "the response is wrong and ends in a loop", True, True),
    "error": Outcome("error", "there is no response, or it could not be scored", False, False),
}
"""Outcome of a score row → what it means. The only list of outcomes."""
OUTCOMES = tuple(OUTCOME_MEANINGS)
FAILURES = tuple(name for name, outcome in OUTCOME_MEANINGS.items() if outcome.is_failure)


def names_answer(outcome: str) -> bool:
    """Return whether an answer that was extracted from a response with this outcome counts as its answer."""
    return OUTCOME_MEANINGS[outcome].names_answer
