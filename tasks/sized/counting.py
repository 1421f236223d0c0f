"""Aggregation: the most common words of a list (`cwe`) and of a coded text (`fwe`); RULER, arXiv 2404.06654.

Templates, repetitions, the Zipf exponent of 2 and the 120 and 50 tokens for an answer are RULER's. Unlike
RULER's script, the coded text leaves its answer's tokens free.
"""

import math
import random
import string
from collections.abc import Sequence
from typing import Any

from evalsuite.tasks.sized.fitting import CountTokens, fill
from evalsuite.tasks.sized.words import words

LIST_RESERVE = 120
LIST = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the "
    "ones that appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list? "
    "Answer: The top 10 words that appear most often in the list are:"
)
COMMON = 10
LONG_FROM = 4096
"""From this context on, RULER repeats words more often."""
EXAMPLE_FROM = 1024
"""Contexts below have no solved example: it would take up most of them. RULER itself begins at 4,096."""

CODED_RESERVE = 50
CODED = (
    "Read the following coded text and track the frequency of each coded word. Find the three most "
    "frequently appeared coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the "
    "dots '....'. What are the three most frequently appeared words in the above coded text? Answer: "
    "According to the coded text above, the three most frequently appeared words are:"
)
CODED_LETTERS = 6
CODED_ANSWERS = 3
NOISE = "..."
_ZETA_2 = math.pi**2 / 6


def numbered(listed: Sequence[str]) -> str:
    """``1. first 2. second``."""
    return " ".join(f"{number}. {word}" for number, word in enumerate(listed, 1))


def _list(drawn: list[str], often: int, seldom: int, seed: str) -> str:
    """The question over words of which the first `COMMON` stand `often` times, the others `seldom`."""
    listed = [*drawn[:COMMON] * often, *drawn[COMMON:] * seldom]
    random.Random(seed).shuffle(listed)
    return LIST.format(context=numbered(listed))


def draw_list(seed: str, context: int, count: CountTokens) -> dict[str, Any]:
    """Return one document of `cwe`, {} if the context does not hold it.

    Returns:
        A row {"prompt", "answers", "units"}; units are different words.
    """
    rng = random.Random(seed)
    known = words("noun", "adjective", "verb")
    drawn = rng.sample(known, len(known))
    often, seldom = (30, 3) if context >= LONG_FROM else (6, 1)
    example = ""
    if context >= EXAMPLE_FROM:
        number, example_often, example_seldom = (40, 10, 3) if context >= LONG_FROM else (20, 3, 1)
        shown = rng.sample(known, number)
        example = _list(shown, example_often, example_seldom, f"{seed} example")
        example += f" {numbered(shown[:COMMON])}\n"

    def prompt(units: int) -> str:
        # 128k tokens may hold more words than there are: then come two in one, as in keys of needles.
        while len(drawn) < units:
            pair = f"{rng.choice(words('adjective'))}-{rng.choice(words('noun'))}"
            if pair not in taken:
                taken.add(pair)
                drawn.append(pair)
        return example + _list(drawn[:units], often, seldom, f"{seed} order")

    taken = set(drawn)
    units = fill(prompt, count, context - LIST_RESERVE, least=COMMON + 1, most=None)
    if units < 0:
        return {}
    return {"prompt": prompt(units), "answers": drawn[:COMMON], "units": units}


def frequencies(units: int, vocabulary: int) -> list[int]:
    """How often each coded word stands among about `units` of them: the k-th units / (k² ζ(2)) times."""
    return [int(units / rank**2 / _ZETA_2) for rank in range(1, vocabulary + 1)]


def draw_coded(seed: str, context: int, count: CountTokens) -> dict[str, Any]:
    """Return one document of `fwe`, {} if the context does not hold it.

    Returns:
        A row {"prompt", "answers", "units"}; the most frequent "word" is a noise of dots.
    """
    rng = random.Random(seed)
    size = max(context // 50, CODED_ANSWERS + 2)
    coded: dict[str, None] = {NOISE: None}
    while len(coded) < size:
        coded["".join(rng.choices(string.ascii_lowercase, k=CODED_LETTERS))] = None
    vocabulary = list(coded)

    def prompt(units: int) -> str:
        counts = frequencies(units, size)
        text = [word for word, times in zip(vocabulary, counts, strict=True) for _ in range(times)]
        random.Random(f"{seed} order").shuffle(text)
        return CODED.format(context=" ".join(text))

    # The last of the answers must stand more often than the word after it.
    least = next(
        units
        for units in range(1, context)
        if (found := frequencies(units, size))[CODED_ANSWERS] > found[CODED_ANSWERS + 1]
    )
    units = fill(prompt, count, context - CODED_RESERVE, least=least, most=None)
    if units < 0:
        return {}
    return {"prompt": prompt(units), "answers": vocabulary[1 : CODED_ANSWERS + 1], "units": units}
