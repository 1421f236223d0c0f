"""Aggregation tasks of RULER (arXiv 2404.06654): common words (`cwe`) and frequent coded words (`fwe`).

Templates, repetitions, the Zipf exponent of 2 and the 120 and 50 answer tokens are RULER's. Unlike in RULER's
script, the answer tokens of the coded text are reserved.
"""

import math
import random
import string
from collections.abc import Sequence
from typing import Any

from evalsuite.tasks.synthetic.ruler.fit_to_length import CountTokens, fit_to_length
from evalsuite.tasks.synthetic.ruler.words import words

COMMON_TOKENS_TO_GENERATE = 120
COMMON_TEMPLATE = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the "
    "ones that appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list? "
    "Answer: The top 10 words that appear most often in the list are:"
)
NUM_COMMON = 10
LONG_MIN_CONTEXT = 4096
"""From this length on, RULER repeats words more often."""
EXAMPLE_MIN_CONTEXT = 1024
"""Shorter contexts have no solved example, which would take up most of them. RULER starts at 4,096 tokens."""

FREQUENT_TOKENS_TO_GENERATE = 50
FREQUENT_TEMPLATE = (
    "Read the following coded text and track the frequency of each coded word. Find the three most "
    "frequently appeared coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the "
    "dots '....'. What are the three most frequently appeared words in the above coded text? Answer: "
    "According to the coded text above, the three most frequently appeared words are:"
)
WORD_LETTERS = 6
NUM_FREQUENT = 3
FILLER = "..."
_ZETA_2 = math.pi**2 / 6


def numbered(items: Sequence[str]) -> str:
    """``1. first 2. second``."""
    return " ".join(f"{number}. {word}" for number, word in enumerate(items, 1))


def _common_words_prompt(drawn: list[str], frequent: int, rare: int, seed: str) -> str:
    """The question over words, the first `NUM_COMMON` `frequent` times and the others `rare` times each."""
    listed = [*drawn[:NUM_COMMON] * frequent, *drawn[NUM_COMMON:] * rare]
    random.Random(seed).shuffle(listed)
    return COMMON_TEMPLATE.format(context=numbered(listed))


def draw_common_words(seed: str, context: int, count_tokens: CountTokens) -> dict[str, Any]:
    """Return one document of `cwe`, {} if the context does not hold it.

    Returns:
        A row {"prompt", "answers", "units"}; `units` is the number of different words.
    """
    rng = random.Random(seed)
    known = words("noun", "adjective", "verb")
    drawn = rng.sample(known, len(known))
    frequent, rare = (30, 3) if context >= LONG_MIN_CONTEXT else (6, 1)
    example = ""
    if context >= EXAMPLE_MIN_CONTEXT:
        example_words, frequent_shown, rare_shown = (40, 10, 3) if context >= LONG_MIN_CONTEXT else (20, 3, 1)
        shown = rng.sample(known, example_words)
        example = _common_words_prompt(shown, frequent_shown, rare_shown, f"{seed} example")
        example += f" {numbered(shown[:NUM_COMMON])}\n"

    def prompt(units: int) -> str:
        # 128k tokens may need more words than exist; compounds are then added, as for needle keys.
        while len(drawn) < units:
            pair = f"{rng.choice(words('adjective'))}-{rng.choice(words('noun'))}"
            if pair not in taken:
                taken.add(pair)
                drawn.append(pair)
        return example + _common_words_prompt(drawn[:units], frequent, rare, f"{seed} order")

    taken = set(drawn)
    units = fit_to_length(
        prompt, count_tokens, context - COMMON_TOKENS_TO_GENERATE, min_units=NUM_COMMON + 1, max_units=None
    )
    if units < 0:
        return {}
    return {"prompt": prompt(units), "answers": drawn[:NUM_COMMON], "units": units}


def frequencies(units: int, vocabulary: int) -> list[int]:
    """Occurrences of each coded word among about `units`: units / (k² ζ(2)) for the k-th."""
    return [int(units / rank**2 / _ZETA_2) for rank in range(1, vocabulary + 1)]


def draw_frequent_words(seed: str, context: int, count_tokens: CountTokens) -> dict[str, Any]:
    """Return one document of `fwe`, {} if the context does not hold it.

    Returns:
        A row {"prompt", "answers", "units"}; the most frequent "word" is the filler of dots.
    """
    rng = random.Random(seed)
    size = max(context // 50, NUM_FREQUENT + 2)
    coded: dict[str, None] = {FILLER: None}
    while len(coded) < size:
        coded["".join(rng.choices(string.ascii_lowercase, k=WORD_LETTERS))] = None
    vocabulary = list(coded)

    def prompt(units: int) -> str:
        counts = frequencies(units, size)
        text = [word for word, times in zip(vocabulary, counts, strict=True) for _ in range(times)]
        random.Random(f"{seed} order").shuffle(text)
        return FREQUENT_TEMPLATE.format(context=" ".join(text))

    # The last answer must be more frequent than the next word.
    min_units = next(
        units
        for units in range(1, context)
        if (found := frequencies(units, size))[NUM_FREQUENT] > found[NUM_FREQUENT + 1]
    )
    units = fit_to_length(
        prompt, count_tokens, context - FREQUENT_TOKENS_TO_GENERATE, min_units=min_units, max_units=None
    )
    if units < 0:
        return {}
    return {"prompt": prompt(units), "answers": vocabulary[1 : NUM_FREQUENT + 1], "units": units}
