"""A number hidden in repeated filler: S-NIAH-1 of RULER (Hsieh et al. 2024, arXiv 2404.06654).

Template, filler, needle and the 128 tokens kept free for an answer are RULER's. Unlike RULER's script, each
document is drawn from a seed of its own, so that no length and no other document changes it.
"""

import random
from collections.abc import Callable
from typing import Any

from evalsuite.foundation import ConfigError, content_hash
from evalsuite.tasks.pocket import lexicon

KINDS = ("niah_single_1",)
RESERVE = 128
FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
NEEDLE = "One of the special magic numbers for {key} is: {value}."
TEMPLATE = (
    "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you "
    "about the number afterwards.\n{context}\nWhat is the special magic number for {key} mentioned in the "
    "provided text? The special magic number for {key} mentioned in the provided text is"
)


def rows(
    kind: str, *, seed: int, count: int, context: int, count_tokens: Callable[[str], int]
) -> list[dict[str, Any]]:
    """Return documents whose prompt and reserve fit `context` tokens, and with one more filler would not.

    Returns:
        Rows {"prompt", "answers", "units", "position"}: the texts that an answer must hold, how many lines
        of filler there are, and how many of them stand before the needle.

    Raises:
        ConfigError: an unknown kind, or a context that does not hold the question itself.
    """
    if kind not in KINDS:
        raise ConfigError(f"needles: unknown kind '{kind}'; known: {', '.join(KINDS)}")
    return [_row(kind, seed, number, context, count_tokens) for number in range(count)]


def _row(kind: str, seed: int, number: int, context: int, count: Callable[[str], int]) -> dict[str, Any]:
    rng = random.Random(content_hash([kind, seed, number, context]))
    key = f"{rng.choice(lexicon.QUALITIES)}-{rng.choice(lexicon.THINGS)}"
    value = str(rng.randint(1_000_000, 9_999_999))

    def prompt(units: int, position: int) -> str:
        lines = [FILLER] * units
        lines.insert(position, NEEDLE.format(key=key, value=value))
        return TEMPLATE.format(context="\n".join(lines), key=key)

    units = _most(lambda number: count(prompt(number, number)) + RESERVE <= context)
    if units < 1:
        raise ConfigError(f"{kind}: {context} tokens do not hold the question and {RESERVE} of an answer")
    position = rng.randint(0, units)
    # Where the needle stands can change the count by a token at its borders.
    while count(prompt(units, position)) + RESERVE > context:
        units -= 1
        position = min(position, units)
    return {"prompt": prompt(units, position), "answers": [value], "units": units, "position": position}


def _most(fits: Callable[[int], bool]) -> int:
    """The largest number that fits, -1 if none does; what is longer never fits again."""
    if not fits(0):
        return -1
    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
