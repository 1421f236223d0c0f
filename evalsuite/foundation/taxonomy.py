"""Closed lists that several rooms share: protocols, benchmark categories, outcomes of a response.

Standard library only, so that the infer phase can import it.
"""

from typing import Literal, get_args

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
"""What a benchmark tests; `other` marks imported benchmarks that evalsuite does not know."""
CATEGORIES: tuple[Category, ...] = get_args(Category)

Outcome = Literal["ok", "extraction_failed", "truncated", "looped", "error"]
"""How a response ended; `error` marks a response that could not be obtained."""
OUTCOMES: tuple[str, ...] = get_args(Outcome)
