"""Contexts that begin alike, as few-shot prompts do: what they share is read once."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

import numpy as np

SHORTEST = 64
"""Fewest tokens worth sharing."""
FEWEST = 3
"""Fewest contexts worth sharing for."""


def families(contexts: Sequence[tuple[int, ...]]) -> list[tuple[int, list[int]]]:
    """Split contexts into those that share a beginning, and the rest.

    Args:
        contexts: token ids.

    Returns:
        (shared tokens, numbers of the contexts); every number is in exactly one, and every context has at
        least one token beyond what is shared. The rest shares 0 tokens and comes last, if there is any.
    """
    alike: dict[tuple[int, ...], list[int]] = {}
    rest = []
    for number, context in enumerate(contexts):
        if len(context) > SHORTEST:
            alike.setdefault(context[:SHORTEST], []).append(number)
        else:
            rest.append(number)
    found = []
    for numbers in alike.values():
        if len(numbers) < FEWEST:
            rest += numbers
            continue
        shared = common([contexts[number] for number in numbers])
        found.append((min(shared, min(len(contexts[number]) for number in numbers) - 1), numbers))
    return [*found, (0, rest)] if rest else found


@dataclass(frozen=True, slots=True)
class Trunk:
    """Tokens that are read once, and which prompts go on from where in them."""

    tokens: tuple[int, ...]
    shares: dict[int, int]
    """By number of the prompt, how many of the tokens it begins with; it has at least one more."""


def trunks(prompts: Sequence[tuple[int, ...]], *, cut: bool) -> list[Trunk]:
    """Split prompts by what they begin with.

    Args:
        prompts: token ids.
        cut: a prompt may also begin with a part of a trunk, as keys and values of softmax attention allow: a
            needle at another depth of the same hay ends what two prompts share. The state of a recurrence
            is that of the whole trunk.

    Returns:
        Every number is in exactly one; a trunk without tokens holds what shares nothing.
    """
    found = []
    for shared, numbers in families(prompts):
        trunk = Trunk(prompts[numbers[0]][:shared], dict.fromkeys(numbers, shared))
        if shared and cut:
            trunk = max(_deepest(prompts, numbers), trunk, key=_saved)
        found.append(trunk)
    return found


def _saved(trunk: Trunk) -> int:
    """Tokens that are not read again."""
    return sum(trunk.shares.values()) - len(trunk.tokens)


def _deepest(prompts: Sequence[tuple[int, ...]], numbers: Sequence[int]) -> Trunk:
    """The longest beginning that any two prompts share."""
    arrays = {number: np.array(prompts[number]) for number in numbers}
    # The two that share most are neighbours in order.
    ordered = sorted(numbers, key=lambda number: prompts[number])
    most, first = max((_alike(arrays[one], arrays[two]), one) for one, two in pairwise(ordered))
    tokens = prompts[first][:most]
    trunk = np.array(tokens)
    shares = {number: min(_alike(each, trunk), len(each) - 1) for number, each in arrays.items()}
    return Trunk(tokens, shares)


def _alike(one: np.ndarray, two: np.ndarray) -> int:
    """Number of tokens with which both begin."""
    length = min(len(one), len(two))
    differ = one[:length] != two[:length]
    return int(differ.argmax()) if differ.any() else length


def common(contexts: Sequence[tuple[int, ...]]) -> int:
    """Number of tokens with which all of them begin."""
    # What the first and the last in order share, all share.
    first, last = min(contexts), max(contexts)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
