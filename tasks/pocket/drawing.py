"""Where every random choice comes from, and which split a piece of text belongs to."""

import hashlib
import random
from typing import Literal

Split = Literal["evaluation", "validation", "train"]

_BUCKETS = 10
_EVALUATION = range(0, 2)
_VALIDATION = range(2, 3)


def generator(*key: str | int | None) -> random.Random:
    """Return a random generator seeded by the content of `key` alone, the same on every machine."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    return random.Random(int.from_bytes(digest[:16], "big"))


def normalised(text: str) -> str:
    """Lower case and single spaces: two texts that differ in nothing else count as the same."""
    return " ".join(text.lower().split())


def split_of(prompt: str, answer: str) -> Split:
    """Return the split that owns this question, by the hash of its normalised text.

    The split is a property of the content, so that an evaluated document can never be a training text,
    whatever seeds the two were drawn with: a fifth of all possible questions is for evaluation, a tenth
    for validation, the rest for training.
    """
    digest = hashlib.blake2b(normalised(f"{prompt} {answer}").encode(), digest_size=8).digest()
    bucket = int.from_bytes(digest, "big") % _BUCKETS
    if bucket in _EVALUATION:
        return "evaluation"
    return "validation" if bucket in _VALIDATION else "train"
