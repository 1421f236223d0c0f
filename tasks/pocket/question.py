"""A question of the pocket world before it becomes a row or a training text."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One question with its answer.

    `prompt` is the literal text given to a model; the answer follows after one space.
    """

    prompt: str
    answer: str
    """What a generating model must come to (see `rule`)."""
    response: str
    """A whole right response, as the training texts write it; the answer alone but where working is shown."""
    rule: str
    """How a response is judged: exact, contains, final_number or format (see answers.py)."""
    wrong: tuple[str, ...] = ()
    """Wrong responses of the same form; empty where ranking makes no sense."""
    form: dict[str, Any] | None = None
    """What `rule` format checks."""
