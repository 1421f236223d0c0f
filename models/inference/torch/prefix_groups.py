"""Groups of prompts with a common prefix (few-shot examples), which is prefilled once per group."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

import numpy as np

MIN_PREFIX_TOKENS = 64
"""Minimum length of a prefix worth sharing."""
MIN_GROUP_SIZE = 3
"""Minimum number of prompts that share a prefix."""


def group_by_prefix(prompts: Sequence[tuple[int, ...]], min_saved: int = 0) -> list[tuple[int, list[int]]]:
    """Split prompts into groups with a common prefix, and the rest.

    Args:
        prompts: token ids.
        min_saved: tokens that need not be read again in a group, at least; a smaller one is not made.

    Returns:
        (length of the common prefix, prompt indices); every index is in exactly one group, and every prompt
        has at least one token after the prefix. The rest has a prefix of length 0 and comes last, if there is
        any.
    """
    candidates: dict[tuple[int, ...], list[int]] = {}
    rest = []
    for index, prompt in enumerate(prompts):
        if len(prompt) > MIN_PREFIX_TOKENS:
            candidates.setdefault(prompt[:MIN_PREFIX_TOKENS], []).append(index)
        else:
            rest.append(index)
    groups = []
    for indices in candidates.values():
        if len(indices) < MIN_GROUP_SIZE:
            rest += indices
            continue
        length = common_prefix_length([prompts[index] for index in indices])
        length = min(length, min(len(prompts[index]) for index in indices) - 1)
        if length * (len(indices) - 1) < min_saved:
            rest += indices
        else:
            groups.append((length, indices))
    return [*groups, (0, rest)] if rest else groups


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Prefix tokens that are prefilled once, and the prompts that continue from them."""

    tokens: tuple[int, ...]
    shared_lengths: dict[int, int]
    """By prompt index, the number of prefix tokens that the prompt starts with; it has at least one more."""


def build_prefix_groups(prompts: Sequence[tuple[int, ...]], *, allow_partial: bool) -> list[PrefixGroup]:
    """Group prompts by common prefix.

    Args:
        prompts: token ids.
        allow_partial: a prompt may share only a part of its group's prefix. Keys and values of softmax
            attention can be truncated, which helps with needle benchmarks: prompts differ from the needle's
            depth on. A recurrent state cannot be truncated.

    Returns:
        Every index is in exactly one group; the group without prefix tokens has the remaining prompts.
    """
    groups = []
    for length, indices in group_by_prefix(prompts):
        group = PrefixGroup(prompts[indices[0]][:length], dict.fromkeys(indices, length))
        if length and allow_partial:
            group = max(_longest_pairwise_prefix(prompts, indices), group, key=_tokens_saved)
        groups.append(group)
    return groups


def _tokens_saved(group: PrefixGroup) -> int:
    """Number of tokens that need not be prefilled again."""
    return sum(group.shared_lengths.values()) - len(group.tokens)


def _longest_pairwise_prefix(prompts: Sequence[tuple[int, ...]], indices: Sequence[int]) -> PrefixGroup:
    """Group whose prefix is the longest that any two prompts share."""
    arrays = {index: np.array(prompts[index]) for index in indices}
    # The pair with the longest common prefix is adjacent in lexicographic order.
    ordered = sorted(indices, key=lambda index: prompts[index])
    longest, first = max((_match_length(arrays[a], arrays[b]), a) for a, b in pairwise(ordered))
    tokens = prompts[first][:longest]
    prefix = np.array(tokens)
    shared = {index: min(_match_length(array, prefix), len(array) - 1) for index, array in arrays.items()}
    return PrefixGroup(tokens, shared)


def _match_length(a: np.ndarray, b: np.ndarray) -> int:
    """Number of leading tokens that are equal."""
    length = min(len(a), len(b))
    differ = a[:length] != b[:length]
    return int(differ.argmax()) if differ.any() else length


def common_prefix_length(prompts: Sequence[tuple[int, ...]]) -> int:
    """Number of leading tokens that all prompts share."""
    # The prefix shared by the lexicographic minimum and maximum is shared by all.
    first, last = min(prompts), max(prompts)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
