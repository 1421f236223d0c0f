"""Agreement of choices (Cohen's κ), of rankings (Kendall's τ-b) and of layer sets (Jaccard).

Stability along a search follows "Distilling to Hybrid Attention Models via KL-guided Layer Selection" (ICLR
2026), appendix B.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt

import numpy as np


def cohen_kappa(first: np.ndarray, second: np.ndarray) -> np.ndarray | None:
    """Cohen's κ of two raters as one value per document, whose mean is κ and whose spread is that of κ.

    κ = (p_o − p_e) ÷ (1 − p_e) (Cohen 1960) with the observed agreement p_o and p_e = Σ_k p₁(k)·p₂(k), that
    of independent raters with the same frequencies. The values are κ plus its influence function, so that a
    bootstrap of their mean is that of the linearized κ.

    Args:
        first: category of each document, from 0; negative for none, a category of its own. [documents]
        second: the same by the other rater. [documents]

    Returns:
        [documents]; None if both raters always name one and the same category: κ is undefined.
    """
    _, codes = np.unique(np.concatenate([first, second]), return_inverse=True)
    one, other = codes[: len(first)], codes[len(first) :]
    kinds = int(codes.max()) + 1
    shares_one = np.bincount(one, minlength=kinds) / len(one)
    shares_other = np.bincount(other, minlength=kinds) / len(other)
    expected = float(shares_one @ shares_other)
    if expected > 1 - 1e-12:
        return None
    same = (one == other).astype(float)
    observed = float(same.mean())
    by_chance = shares_other[one] + shares_one[other] - 2 * expected
    influence = ((same - observed) * (1 - expected) - (1 - observed) * by_chance) / (1 - expected) ** 2
    return np.asarray((observed - expected) / (1 - expected) + influence)


def agreement_by_chance(first: np.ndarray, second: np.ndarray) -> float:
    """p_e of `cohen_kappa`: the agreement of independent raters with the same frequencies."""
    kinds = np.unique(np.concatenate([first, second]))
    return float(sum((first == kind).mean() * (second == kind).mean() for kind in kinds))


@dataclass(frozen=True, slots=True)
class RankAgreement:
    """Agreement of two rankings of the same items."""

    tau: float | None
    """Kendall's τ-b; None if one ranking ties everything."""
    pairs: int
    """Pairs that neither ranking ties."""
    inversions: tuple[tuple[int, int], ...]
    """Pairs (i, j) where the first ranking puts i above j and the second j above i."""


def rank_agreement(first: Sequence[float], second: Sequence[float]) -> RankAgreement:
    """Compare two score lists of the same length; higher is better in both.

    Raises:
        ValueError: the lengths differ.
    """
    if len(first) != len(second):
        raise ValueError(f"lengths differ: {len(first)} and {len(second)} scores")
    concordant = tied_first = tied_second = total = 0
    inversions = []
    for i, j in combinations(range(len(first)), 2):
        total += 1
        a, b = first[i] - first[j], second[i] - second[j]
        tied_first += a == 0
        tied_second += b == 0
        if a * b > 0:
            concordant += 1
        elif a * b < 0:
            inversions.append((i, j) if a > 0 else (j, i))
    scale = sqrt((total - tied_first) * (total - tied_second))
    tau = (concordant - len(inversions)) / scale if scale else None
    return RankAgreement(tau, concordant + len(inversions), tuple(inversions))


WINDOW = 10
"""Number of most recent sets compared: R of the paper."""


@dataclass(frozen=True, slots=True)
class Stability:
    """Stability of the most recent layer sets at one point of a search."""

    jaccard: float | None
    """Mean similarity over all pairs of sets in the window; None for a single set."""
    backbone: int
    """Number of layers that are in all sets."""
    union: int
    """Number of layers that are in any set."""


def jaccard(one: Sequence[int], other: Sequence[int]) -> float:
    """|A ∩ B| ÷ |A ∪ B|; 1 for two empty sets. One swap in a set of K gives (K − 1) ÷ (K + 1)."""
    a, b = set(one), set(other)
    return len(a & b) / len(a | b) if a | b else 1.0


def stability(sets: Sequence[Sequence[int]], window: int = WINDOW) -> list[Stability]:
    """Similarity of the last `window` sets at each point of a search (fewer at its beginning).

    Args:
        sets: the selected layers at each point, in order.
        window: number of most recent sets, the current one included.

    Raises:
        ValueError: a window below 2.
    """
    if window < 2:
        raise ValueError(f"a window of {window} compares nothing; expected 2 or more")
    found = []
    for end in range(1, len(sets) + 1):
        last = [set(each) for each in sets[max(0, end - window) : end]]
        pairs = [jaccard(sorted(a), sorted(b)) for a, b in combinations(last, 2)]
        mean = sum(pairs) / len(pairs) if pairs else None
        found.append(Stability(mean, len(set.intersection(*last)), len(set.union(*last))))
    return found
