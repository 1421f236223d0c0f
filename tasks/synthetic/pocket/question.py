"""Questions of the pocket world, their random generators and their data splits."""

import hashlib
import random
from dataclasses import dataclass
from typing import Any, Literal

Split = Literal["evaluation", "validation", "train"]

_BUCKETS = 10
_EVALUATION = range(0, 2)
_VALIDATION = range(2, 3)


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """One question with its answer, before it becomes a row or a training text.

    `prompt` is the literal text of the prompt; the response follows after one space.
    """

    prompt: str
    answer: str
    """What a response is compared with (see `rule`)."""
    response: str
    """A complete correct response, as in the training texts; equals the answer unless it shows working."""
    rule: str
    """How a response is scored: exact, contains, final_number, final_answer or format (see scoring.py)."""
    wrong: tuple[str, ...] = ()
    """Wrong responses of the same form; empty for tasks without choices."""
    form: dict[str, Any] | None = None
    """What rule `format` checks."""


def generator(*key: str | int | None) -> random.Random:
    """Return a random generator seeded by the content of `key`, the same on every machine."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return random.Random(int.from_bytes(digest[:16], "big"))


def normalize(text: str) -> str:
    """Lower case and single spaces: texts that are equal after this are one question."""
    return " ".join(text.lower().split())


def split_of(prompt: str, answer: str) -> Split:
    """Return the split that owns this question, by the hash of its normalized text.

    The split is a function of the content, so an evaluated document is never a training text, whatever
    seeds the two were drawn with: a fifth of all questions is for evaluation, a tenth for validation, the
    rest for training.
    """
    digest = hashlib.blake2b(normalize(f"{prompt} {answer}").encode(), digest_size=8).digest()
    bucket = int.from_bytes(digest, "big") % _BUCKETS
    if bucket in _EVALUATION:
        return "evaluation"
    return "validation" if bucket in _VALIDATION else "train"
