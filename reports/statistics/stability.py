"""How steady a chosen set of layers is along a search: rolling Jaccard, backbone, union.

After "Distilling to Hybrid Attention Models via KL-guided Layer Selection" (ICLR 2026), appendix B.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

WINDOW = 10
"""Sets that are looked back on: R of the paper."""


@dataclass(frozen=True, slots=True)
class Stability:
    """The last sets of a search, as one saw them at one point."""

    jaccard: float | None
    """Mean over all pairs of sets in the window; None while there is but one."""
    backbone: int
    """Layers that are in all of them."""
    union: int
    """Layers that are in any of them."""


def jaccard(one: Sequence[int], other: Sequence[int]) -> float:
    """|A ∩ B| ÷ |A ∪ B|; 1 for two empty sets. One swap in a set of K gives (K − 1) ÷ (K + 1)."""
    a, b = set(one), set(other)
    return len(a & b) / len(a | b) if a | b else 1.0


def stability(sets: Sequence[Sequence[int]], window: int = WINDOW) -> list[Stability]:
    """For each point of a search, how alike the last `window` sets are (fewer at its beginning).

    Args:
        sets: the chosen layers at each point, in order.
        window: how many to look back on, the point itself among them.

    Raises:
        ValueError: a window below 2 compares nothing.
    """
    if window < 2:
        raise ValueError(f"a window of {window} compares nothing")
    found = []
    for end in range(1, len(sets) + 1):
        last = [set(each) for each in sets[max(0, end - window) : end]]
        pairs = [jaccard(sorted(a), sorted(b)) for a, b in combinations(last, 2)]
        mean = sum(pairs) / len(pairs) if pairs else None
        found.append(Stability(mean, len(set.intersection(*last)), len(set.union(*last))))
    return found
