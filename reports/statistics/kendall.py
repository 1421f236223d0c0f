"""Do two protocols rank the checkpoints alike? Kendall's τ-b and the pairs that change order."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt


@dataclass(frozen=True, slots=True)
class RankAgreement:
    """Agreement of two rankings of the same things."""

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
        raise ValueError(f"{len(first)} scores against {len(second)}")
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
