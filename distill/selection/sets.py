"""Sets of layers: budgets, the best K, how alike sets are, and when they have settled."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import floor

from evalsuite.foundation import ConfigError


def softmax_budget(layers: int, *, budget: int | None = None, ratio: float | str | None = None) -> int:
    """The number K of softmax layers.

    Args:
        layers: layers of the teacher.
        budget: K itself.
        ratio: share of the layers that stay softmax (0.25), or softmax to linear (`1:3`); K is the nearest
            whole number, a half rounded up. So 12.5 % of 36 layers are 5 and 1:8 are 4, the two numbers
            that sections 4.3 and 4.2 of KL-guided selection (ICLR 2026) give.

    Raises:
        ConfigError: neither or both are given, or K is not in 1 … layers.
    """
    if (budget is None) == (ratio is None):
        raise ConfigError("say how many layers stay softmax: either --budget K or --ratio SHARE")
    if ratio is not None:
        budget = floor(_share(ratio) * layers + 0.5)
    assert budget is not None
    if not 1 <= budget <= layers:
        said = f"--ratio {ratio} comes to {budget}" if ratio is not None else f"--budget {budget}"
        raise ConfigError(f"{said}: the teacher has {layers} layers, so between 1 and {layers} can stay")
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
    """The K layers of highest score, in ascending order; `ties` decides between equals, then depth.

    A score that is not a number ranks last.
    """
    order = sorted(
        range(len(scores)),
        key=lambda layer: (_low_if_nan(scores[layer]), _low_if_nan(ties[layer]) if ties else 0.0, -layer),
        reverse=True,
    )
    return tuple(sorted(order[:k]))


def _low_if_nan(value: float) -> float:
    return value if value == value else float("-inf")


def ranks(scores: Sequence[float]) -> list[float]:
    """The rank of each layer, 1 for the highest score; equals share the mean of their ranks."""
    ordered = sorted(scores, reverse=True)
    first = {score: ordered.index(score) + 1 for score in scores}
    return [first[score] + (ordered.count(score) - 1) / 2 for score in scores]


def jaccard(one: Sequence[int], other: Sequence[int]) -> float:
    """|A ∩ B| / |A ∪ B|; two empty sets are alike. Two K-sets one swap apart have (K − 1)/(K + 1)."""
    a, b = set(one), set(other)
    return len(a & b) / len(a | b) if a | b else 1.0


def one_swap_jaccard(k: int) -> float:
    """(K − 1)/(K + 1): 0.80 for K = 9, 0.75 for K = 7 (KL-guided selection, Appendix B)."""
    return (k - 1) / (k + 1)


@dataclass(frozen=True, kw_only=True)
class Window:
    """The last R top-K sets, and what they have in common (KL-guided selection, Appendix B)."""

    sets: tuple[tuple[int, ...], ...]

    @property
    def jaccard(self) -> float:
        """Mean Jaccard similarity over all pairs, 2/(R(R−1)) Σ_{i<j}; 1 for a single set."""
        pairs = [jaccard(a, b) for a, b in combinations(self.sets, 2)]
        return sum(pairs) / len(pairs) if pairs else 1.0

    @property
    def backbone(self) -> int:
        """Layers in all sets."""
        return len(set.intersection(*map(set, self.sets)))

    @property
    def union(self) -> int:
        """Layers in any set."""
        return len(set.union(*map(set, self.sets)))


@dataclass(frozen=True, kw_only=True)
class StopRule:
    """The rolling-Jaccard early stop (KL-guided selection, Appendix B, "Practical recipe").

    At the first snapshot whose window of R sets is full and has (1) mean pairwise Jaccard ≥ 0.90, (2) a
    backbone ≥ K − 1 and (3) a union ≤ K + 1.

    `newer` adds the recipe's optional rule for two layers that contend for the last place: "Stop when (3)
    first becomes true and S_t ≠ S_{t−1} to pick the newer of the two candidates". It stops a pass whose
    last place keeps changing hands, which (1) alone would let run on. The paper does not say whether (2)
    must hold as well; it does here, as without it there are more than two candidates.
    """

    window: int = 10
    similarity: float = 0.90
    newer: bool = False

    def holds(self, sets: Sequence[Sequence[int]], k: int) -> bool:
        """Whether the pass may stop after the last of `sets`."""
        if len(sets) < self.window:
            return False
        last = self.last(sets)
        if last.backbone < k - 1 or last.union > k + 1:
            return False
        if self.newer and last.sets[-1] != last.sets[-2]:
            return True
        # A mean of fractions such as 0.9 may come out an ulp short of it.
        return last.jaccard >= self.similarity - 1e-12

    def first(self, sets: Sequence[Sequence[int]], k: int) -> int | None:
        """Index of the snapshot at which the pass stops; None if it never does."""
        return next((i for i in range(len(sets)) if self.holds(sets[: i + 1], k)), None)

    def last(self, sets: Sequence[Sequence[int]]) -> Window:
        """The window that ends with the last of `sets`."""
        return Window(sets=tuple(tuple(each) for each in sets[-self.window :]))
