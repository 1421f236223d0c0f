"""Contexts that begin alike, as few-shot prompts do: what they share is read once."""

from collections.abc import Sequence
from itertools import takewhile

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


def common(contexts: Sequence[tuple[int, ...]]) -> int:
    """Number of tokens with which all of them begin."""
    # What the first and the last in order share, all share.
    first, last = min(contexts), max(contexts)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
