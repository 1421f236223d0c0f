"""Keys and values: retrieval from a JSON object, and associative recall with many queries."""

import json
import random
import uuid
from typing import Any

from evalsuite.foundation import ConfigError
from evalsuite.tasks.sized.fitting import CountTokens, fill
from evalsuite.tasks.sized.words import words

JSON_RESERVE = 100
JSON = (
    "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n{records}"
    '\n\nKey: "{key}"\nCorresponding value:'
)
RECALL_RESERVE = 8
POWER = 0.01
"""Exponent of Zoology's power law: the chance of a gap g is proportional to g^(POWER − 1)."""
CHOICES = 16


def json_prompt(records: list[tuple[str, str]], key: str) -> str:
    """The question of Liu et al. 2023 (arXiv 2307.03172, `kv_retrieval.prompt`) over these pairs."""
    lines = ",\n ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in records)
    return JSON.format(records="{" + lines + "}", key=key)


def draw_json(seed: str, context: int, count: CountTokens) -> dict[str, Any]:
    """Return one document of key-value retrieval, {} if the context does not hold it.

    Pairs of random UUIDs, one of which is asked for, as the published sets of 75, 140 and 300 pairs.

    Returns:
        A row {"prompt", "answers", "units", "position"}; the position is how many pairs stand before.
    """
    rng = random.Random(seed)
    place = rng.random()
    records: list[tuple[str, str]] = []

    def prompt(units: int) -> str:
        while len(records) < units:
            records.append((_uuid(rng), _uuid(rng)))
        return json_prompt(records[:units], records[int(place * units)][0])

    units = fill(prompt, count, context - JSON_RESERVE, least=1, most=None)
    if units < 0:
        return {}
    position = int(place * units)
    return {
        "prompt": prompt(units),
        "answers": [records[position][1]],
        "units": units,
        "position": position,
    }


def draw_recall(seed: str, context: int, count: CountTokens) -> dict[str, Any]:
    """Return one document of multi-query associative recall, {} if the context does not hold it.

    MQAR of Zoology (Arora et al. 2023, arXiv 2312.04927, `multiquery_ar`), in words instead of token ids:
    N different keys with N different values, then every key once more, in an order drawn by its power law
    (exponent 0.01) with its value behind it; a quarter of the sequence each are keys, values, queries and
    answers, as in Zoology's 64 pairs in 256 tokens. The prompt ends behind one of the queries, drawn
    uniformly. What differs: a pretrained model must see what is asked of it, so that each pair has a line
    of its own, and queries before the last are followed by their values, not by random tokens.

    Returns:
        A row {"prompt", "answers", "choices", "gold", "answer", "units", "position", "queries"}: the pair
        that is asked for, and how many queries were answered before.

    Raises:
        ConfigError: the context holds more pairs than there are words.
    """
    rng = random.Random(seed)
    known = [word for word in words("noun") if word.isalpha()]
    drawn = rng.sample(known, len(known))
    half = len(drawn) // 2
    place = rng.random()

    def whole(units: int) -> tuple[list[str], list[int]]:
        pairs = [
            f"{key} {value}" for key, value in zip(drawn[:units], drawn[half : half + units], strict=True)
        ]
        return pairs, _queries(f"{seed} queries", units)

    def text(units: int) -> str:
        pairs, order = whole(units)
        return "\n".join([*pairs, *(pairs[number] for number in order)])

    units = fill(text, count, context - RECALL_RESERVE, least=4, most=half)
    if units < 0:
        return {}
    if units == half:
        raise ConfigError(f"mqar: {context} tokens hold more pairs than the {half} that there are words for")
    pairs, order = whole(units)
    answered = int(place * units)
    asked = order[answered]
    key, value = pairs[asked].split()
    values = drawn[half : half + units]
    others = rng.sample([each for each in values if each != value], min(CHOICES, units) - 1)
    choices = rng.sample([value, *others], len(others) + 1)
    return {
        "prompt": "\n".join([*pairs, *(pairs[number] for number in order[:answered]), key]),
        "answers": [value],
        "choices": [f" {each}" for each in choices],
        "gold": choices.index(value),
        "units": units,
        "position": asked,
        "queries": answered,
    }


def _queries(seed: str, units: int) -> list[int]:
    """The order of the queries: each key in turn takes a free gap, by the power law."""
    rng = random.Random(seed)
    keys = [(rng.random() ** ((gap + 1) ** (1 - POWER)), gap) for gap in range(units)]
    gaps = [gap for _, gap in sorted(keys, reverse=True)]
    order = [0] * units
    for key, gap in enumerate(gaps):
        order[gap] = key
    return order


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
