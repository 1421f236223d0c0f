"""Synthetic questions: what a layer is needed for, asked in a few lines of text.

Every prompt shows two solved questions before the one that counts, so that models which follow no
instructions know the form. Words are the pocket world's: plain English ones that its teacher has as tokens.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from evalsuite.tasks.pocket import lexicon

SHOWN = 2
"""Solved questions before each question."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, and the answer that follows after a space.

    `any_order` marks an answer of several words whose order does not matter.
    """

    prompt: str
    answer: str
    any_order: bool = False


def key_value(rng: random.Random, pairs: int) -> Question:
    """`kv`: look a key of a dictionary up (Table 3, KV Retrieval)."""
    keys, values = rng.sample(lexicon.THINGS, pairs), rng.sample(lexicon.QUALITIES, pairs)
    listed = ", ".join(f"{key} {value}" for key, value in zip(keys, values, strict=True))
    *shown, asked = rng.sample(range(pairs), SHOWN + 1)
    solved = "".join(f"Query: {keys[i]} {values[i]}\n" for i in shown)
    return Question(f"Pairs: {listed}.\n{solved}Query: {keys[asked]}", values[asked])


def sum_of_values(rng: random.Random, pairs: int) -> Question:
    """`ar`: add the values of three prompted keys (Table 3, Associative Recall); values are 0 to 9."""
    values = {key: rng.randint(0, 9) for key in rng.sample(lexicon.THINGS, pairs)}
    listed = ", ".join(f"{key} {value}" for key, value in values.items())
    return _sums(rng, listed, list(values), values.__getitem__)


def sum_of_aliases(rng: random.Random, pairs: int) -> Question:
    """`ar_mh`: the same with keys that name other keys, up to two steps from a value (Table 3, AR-MH)."""
    keys = rng.sample(lexicon.THINGS, pairs)
    values: dict[str, int] = {}
    targets: dict[str, str] = {}
    depth: dict[str, int] = {}
    for key in keys:
        parents = [other for other in depth if depth[other] < 2]
        if parents and rng.random() < 0.4:
            targets[key] = rng.choice(parents)
            depth[key] = depth[targets[key]] + 1
        else:
            values[key] = rng.randint(0, 9)
            depth[key] = 0
    listed = ", ".join(f"{key} {targets.get(key, values.get(key))}" for key in keys)

    def value(key: str) -> int:
        return values[key] if key in values else value(targets[key])

    return _sums(rng, listed, keys, value)


def _sums(rng: random.Random, listed: str, keys: list[str], value: Callable[[str], int]) -> Question:
    lines = []
    for _ in range(SHOWN + 1):
        asked = rng.sample(keys, 3)
        lines.append((" + ".join(asked), str(sum(map(value, asked)))))
    solved = "".join(f"{question} = {answer}\n" for question, answer in lines[:-1])
    return Question(f"Pairs: {listed}.\n{solved}{lines[-1][0]} =", lines[-1][1])


def variables(rng: random.Random, chains: int = 3, hops: int = 2) -> Question:
    """`vt`: name all variables that come to a value through shuffled assignments (Table 3, VT)."""
    names = rng.sample(lexicon.THINGS, chains * (hops + 1))
    numbers = rng.sample(range(10, 100), chains)
    assignments, groups = [], []
    for chain, number in enumerate(numbers):
        mine = names[chain * (hops + 1) : (chain + 1) * (hops + 1)]
        assignments += [f"{mine[0]} = {number}"]
        assignments += [f"{mine[i + 1]} = {mine[i]}" for i in range(hops)]
        groups.append(mine)
    rng.shuffle(assignments)
    order = {name: place for place, name in enumerate(assignment.split()[0] for assignment in assignments)}
    lines = [
        (f"All that are {number}:", " ".join(sorted(group, key=order.__getitem__)))
        for number, group in zip(numbers, groups, strict=True)
    ]
    solved = "".join(f"{question} {answer}\n" for question, answer in lines[:-1][:SHOWN])
    return Question(f"{'. '.join(assignments)}.\n{solved}{lines[-1][0]}", lines[-1][1], any_order=True)


def common_words(rng: random.Random, common: int = 3, rare: int = 20, times: int = 4) -> Question:
    """`cwe`: name the most frequent words of a list (Table 3, CWE); three lists, of which two are solved."""
    texts = []
    for _ in range(SHOWN + 1):
        words = rng.sample(lexicon.THINGS + lexicon.QUALITIES, common + rare)
        bag = words[:common] * times + words[common:]
        rng.shuffle(bag)
        answer = sorted(words[:common], key=bag.index)
        texts.append((f"Words: {' '.join(bag)}.\nThe {common} words that are there most:", " ".join(answer)))
    solved = "".join(f"{question} {answer}\n" for question, answer in texts[:-1])
    return Question(solved + texts[-1][0], texts[-1][1], any_order=True)


def draw(kind: str, *, count: int, seed: int, pairs: int) -> list[Question]:
    """The first `count` questions of a kind; number i depends on (kind, seed, i, pairs) alone."""
    return [_KINDS[kind](random.Random(f"{kind} {seed} {i}"), pairs) for i in range(count)]


_KINDS: dict[str, Callable[[random.Random, int], Question]] = {
    "kv": key_value,
    "ar": sum_of_values,
    "ar_mh": sum_of_aliases,
    "vt": lambda rng, pairs: variables(rng),
    "cwe": lambda rng, pairs: common_words(rng),
}
KINDS = tuple(_KINDS)
