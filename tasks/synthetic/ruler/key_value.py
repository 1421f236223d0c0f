"""Key-value retrieval from a JSON object, and multi-query associative recall (MQAR)."""

import json
import random
import uuid
from typing import Any

from evalsuite.foundation import ConfigError
from evalsuite.tasks.synthetic.ruler.fit_to_length import CountTokens, fit_to_length
from evalsuite.tasks.synthetic.ruler.words import words

JSON_TOKENS_TO_GENERATE = 100
JSON_TEMPLATE = (
    "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n{records}"
    '\n\nKey: "{key}"\nCorresponding value:'
)
MQAR_TOKENS_TO_GENERATE = 8
POWER_LAW_EXPONENT = 0.01
"""Zoology's power law: the probability of a gap g is proportional to g^(exponent − 1)."""
NUM_CHOICES = 16


def json_prompt(records: list[tuple[str, str]], key: str) -> str:
    """Format the prompt of Liu et al. 2023 (arXiv 2307.03172, `kv_retrieval.prompt`)."""
    lines = ",\n ".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in records)
    return JSON_TEMPLATE.format(records="{" + lines + "}", key=key)


def draw_json(seed: str, context: int, count_tokens: CountTokens) -> dict[str, Any]:
    """Draw one document of key-value retrieval; {} if the context is too short.

    Pairs of random UUIDs with one queried key, as in the published sets of 75, 140 and 300 pairs.

    Returns:
        A row {"prompt", "answers", "units", "position"}; `position` is the index of the queried pair.
    """
    rng = random.Random(seed)
    depth = rng.random()
    records: list[tuple[str, str]] = []

    def prompt(units: int) -> str:
        while len(records) < units:
            records.append((_uuid(rng), _uuid(rng)))
        return json_prompt(records[:units], records[int(depth * units)][0])

    units = fit_to_length(
        prompt, count_tokens, context - JSON_TOKENS_TO_GENERATE, min_units=1, max_units=None
    )
    if units < 0:
        return {}
    position = int(depth * units)
    return {
        "prompt": prompt(units),
        "answers": [records[position][1]],
        "units": units,
        "position": position,
    }


def draw_mqar(seed: str, context: int, count_tokens: CountTokens) -> dict[str, Any]:
    """Draw one document of multi-query associative recall; {} if the context is too short.

    MQAR of Zoology (Arora et al. 2023, arXiv 2312.04927, `multiquery_ar`), with words instead of token ids:
    N different keys with N different values, then every key once more with its value, in an order drawn
    from the power law. Keys, values, queries and answers take a quarter of the sequence each, as in
    Zoology's 64 pairs in 256 tokens. The prompt ends after one of the queries, drawn uniformly. Differences,
    for pretrained models: each pair is on its own line, and earlier queries are followed by their values
    instead of random tokens.

    Returns:
        A row {"prompt", "answers", "choices", "gold", "answer", "units", "position", "queries"}: the
        index of the queried pair, and the number of queries answered before.

    Raises:
        ConfigError: the context needs more pairs than there are words.
    """
    rng = random.Random(seed)
    known = [word for word in words("noun") if word.isalpha()]
    drawn = rng.sample(known, len(known))
    half = len(drawn) // 2
    depth = rng.random()

    def sequence(units: int) -> tuple[list[str], list[int]]:
        pairs = [
            f"{key} {value}" for key, value in zip(drawn[:units], drawn[half : half + units], strict=True)
        ]
        return pairs, _queries(f"{seed} queries", units)

    def text(units: int) -> str:
        pairs, order = sequence(units)
        return "\n".join([*pairs, *(pairs[number] for number in order)])

    units = fit_to_length(text, count_tokens, context - MQAR_TOKENS_TO_GENERATE, min_units=4, max_units=half)
    if units < 0:
        return {}
    if units == half:
        raise ConfigError(f"mqar: {context} tokens need more than the {half} pairs of the word list")
    pairs, order = sequence(units)
    answered = int(depth * units)
    queried = order[answered]
    key, value = pairs[queried].split()
    values = drawn[half : half + units]
    others = rng.sample([each for each in values if each != value], min(NUM_CHOICES, units) - 1)
    choices = rng.sample([value, *others], len(others) + 1)
    return {
        "prompt": "\n".join([*pairs, *(pairs[number] for number in order[:answered]), key]),
        "answers": [value],
        "choices": [f" {each}" for each in choices],
        "gold": choices.index(value),
        "units": units,
        "position": queried,
        "queries": answered,
    }


def _queries(seed: str, units: int) -> list[int]:
    """Order of the queries: each key takes a free gap, drawn from the power law."""
    rng = random.Random(seed)
    keys = [(rng.random() ** ((gap + 1) ** (1 - POWER_LAW_EXPONENT)), gap) for gap in range(units)]
    gaps = [gap for _, gap in sorted(keys, reverse=True)]
    order = [0] * units
    for key, gap in enumerate(gaps):
        order[gap] = key
    return order


def _uuid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
