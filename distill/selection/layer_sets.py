"""Sets of layers: budgets, top K, similarity, and the early-stop rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import floor
from typing import Literal

from evalsuite.foundation import ConfigError

Direction = Literal["add", "remove"]
"""Layers are restored in the all-linear student, or become linear in the teacher."""


def softmax_budget(
    count: int, *, budget: int | None = None, ratio: float | str | None = None, unit: str = "layer"
) -> int:
    """Return the number K of softmax layers, or heads.

    Args:
        count: layers of the teacher, or heads of all layers.
        budget: K itself.
        ratio: share of softmax layers (0.25), or softmax to linear (`1:3`), rounded half up to K. For 36
            layers, 12.5 % gives 5 and 1:8 gives 4, as in sections 4.3 and 4.2 of KL-guided selection
            (ICLR 2026).

    Raises:
        ConfigError: not exactly one is given, or K is not in 1 … count.
    """
    if (budget is None) == (ratio is None):
        raise ConfigError(f"give the number of softmax {unit}s: either --budget K or --ratio SHARE")
    if ratio is not None:
        budget = floor(_share(ratio) * count + 0.5)
    assert budget is not None
    if not 1 <= budget <= count:
        option = f"--ratio {ratio} gives {budget}" if ratio is not None else f"--budget {budget}"
        raise ConfigError(f"{option}: must be between 1 and {count}, the {unit}s of the teacher")
    return budget


def _share(ratio: float | str) -> float:
    text = str(ratio)
    softmax, colon, linear = text.partition(":")
    try:
        share = float(softmax) / (float(softmax) + float(linear)) if colon else float(text)
    except (ValueError, ZeroDivisionError):
        share = -1.0
    if not 0 < share <= 1:
        raise ConfigError(f"--ratio {text}: expected a share such as 0.25, or softmax:linear such as 1:3")
    return share


def top_layers(scores: Sequence[float], k: int, *, ties: Sequence[float] | None = None) -> tuple[int, ...]:
    """Return the K layers with the highest scores, ascending; ties are broken by `ties`, then by depth.

    NaN ranks last.
    """
    order = sorted(
        range(len(scores)),
        key=lambda layer: (
            _nan_to_minus_inf(scores[layer]),
            _nan_to_minus_inf(ties[layer]) if ties else 0.0,
            -layer,
        ),
        reverse=True,
    )
    return tuple(sorted(order[:k]))


def _nan_to_minus_inf(value: float) -> float:
    return value if value == value else float("-inf")


def ranks(scores: Sequence[float]) -> list[float]:
    """Rank of each layer, 1 for the highest score; ties share the mean rank."""
    ordered = sorted(scores, reverse=True)
    first = {score: ordered.index(score) + 1 for score in scores}
    return [first[score] + (ordered.count(score) - 1) / 2 for score in scores]


def jaccard(one: Sequence[int], other: Sequence[int]) -> float:
    """|A ∩ B| / |A ∪ B|, 1 for two empty sets. Two K-sets one swap apart have (K − 1)/(K + 1)."""
    a, b = set(one), set(other)
    return len(a & b) / len(a | b) if a | b else 1.0


def one_swap_jaccard(k: int) -> float:
    """(K − 1)/(K + 1): 0.80 for K = 9, 0.75 for K = 7 (KL-guided selection, Appendix B)."""
    return (k - 1) / (k + 1)


@dataclass(frozen=True, kw_only=True)
class Window:
    """The last R top-K sets and their overlap (KL-guided selection, Appendix B)."""

    sets: tuple[tuple[int, ...], ...]

    @property
    def jaccard(self) -> float:
        """Mean Jaccard similarity over all pairs, 2/(R(R−1)) Σ_{i<j}; 1 for a single set."""
        pairs = [jaccard(a, b) for a, b in combinations(self.sets, 2)]
        return sum(pairs) / len(pairs) if pairs else 1.0

    @property
    def backbone(self) -> int:
        """Number of layers in all sets."""
        return len(set.intersection(*map(set, self.sets)))

    @property
    def union(self) -> int:
        """Number of layers in any set."""
        return len(set.union(*map(set, self.sets)))


MIN_JACCARD = 0.90
"""Minimum mean pairwise Jaccard similarity of a stable window (Appendix B)."""


@dataclass(frozen=True, kw_only=True)
class StopRule:
    """The rolling-Jaccard early stop (KL-guided selection, Appendix B, "Practical recipe").

    Holds at the first snapshot whose window of R sets is full and has (1) mean pairwise Jaccard ≥ 0.90, (2) a
    backbone ≥ K − 1 and (3) a union ≤ K + 1.

    `stop_on_last_slot_tie` adds the optional rule for two layers that alternate in the last slot: "Stop when
    (3) first becomes true and S_t ≠ S_{t−1} to pick the newer of the two candidates". Condition (1) alone
    would never hold then. The paper does not state whether (2) is required too; it is here, since
    otherwise there are more than two candidates.
    """

    window: int = 10
    stop_on_last_slot_tie: bool = False

    def holds(self, sets: Sequence[Sequence[int]], k: int) -> bool:
        """Whether training may stop after the last of `sets`."""
        if len(sets) < self.window:
            return False
        last = self.last(sets)
        if last.backbone < k - 1 or last.union > k + 1:
            return False
        if self.stop_on_last_slot_tie and last.sets[-1] != last.sets[-2]:
            return True
        # Tolerance for rounding of the mean.
        return last.jaccard >= MIN_JACCARD - 1e-12

    def first(self, sets: Sequence[Sequence[int]], k: int) -> int | None:
        """Index of the snapshot at which training stops; None if it never does."""
        return next((i for i in range(len(sets)) if self.holds(sets[: i + 1], k)), None)

    def last(self, sets: Sequence[Sequence[int]]) -> Window:
        """The window that ends with the last of `sets`."""
        return Window(sets=tuple(tuple(each) for each in sets[-self.window :]))
