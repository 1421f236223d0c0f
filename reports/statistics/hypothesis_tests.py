"""Hypothesis tests: McNemar's mid-p test, Holm's correction, minimum detectable effects, sample sizes."""

from collections.abc import Sequence
from math import ceil, comb, sqrt

from evalsuite.reports.statistics.intervals import normal_quantile


def mcnemar_mid_p(wins: int, losses: int) -> float:
    """Two-sided mid-p-value of McNemar's test, of `wins` among `wins + losses` at one half.

    Half of the probability of the observed split counts: the exact test, which counts all of it, rejects
    less often than its level (Fagerland, Lydersen and Laake, BMC Medical Research Methodology 13:91, 2013).
    Documents on which both agree carry no information. Without discordant documents p is 1.

    Raises:
        ValueError: a negative count.
    """
    if wins < 0 or losses < 0:
        raise ValueError(f"wins {wins} and losses {losses} cannot be negative")
    discordant, fewer = wins + losses, min(wins, losses)
    if discordant > 1000:
        from scipy.special import bdtr  # stable for sums of many binomial terms

        below = float(bdtr(fewer - 1, discordant, 0.5)) if fewer else 0.0
        return min(1.0, below + float(bdtr(fewer, discordant, 0.5)))
    below = sum(comb(discordant, k) for k in range(fewer))
    return (2 * below + comb(discordant, fewer)) / 2**discordant


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values (Holm 1979): rejecting those ≤ α bounds the family-wise error rate by α.

    Raises:
        ValueError: a p-value outside 0 … 1.
    """
    if any(not 0 <= p <= 1 for p in p_values):
        raise ValueError("p-values must be between 0 and 1")
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def paired_minimum_detectable_effect(
    discordant: float, documents: int, *, level: float = 0.95, power: float = 0.8
) -> float | None:
    """Minimum detectable difference of two paired proportions (Connor, Biometrics 43, 1987).

    Under no difference the variance per document is ψ, the share of discordant documents; under δ it is
    ψ − δ². Solves δ√n = z₁₋α⁄₂·√ψ + z_power·√(ψ − δ²).

    Args:
        discordant: number of discordant documents, observed or planned.
        documents: number of documents.

    Returns:
        A fraction; None if the effect is not detectable even if all discordant documents favour one side.
    """
    if documents == 0 or discordant == 0:
        return None
    psi = discordant / documents
    z, w, n = normal_quantile(0.5 + level / 2), normal_quantile(power), documents
    # A quadratic in δ: (n + w²)·δ² − 2·z·√(ψn)·δ + (z² − w²)·ψ = 0, the larger root.
    half = z * sqrt(psi * n)
    under = half * half - (n + w * w) * (z * z - w * w) * psi
    delta = (half + sqrt(max(0.0, under))) / (n + w * w)
    return delta if delta <= psi else None


def documents_to_decide(documents: int, distance: float, half_width: float) -> int | None:
    """Number of documents at which an interval of `half_width` would shrink to `distance`.

    Assumes that widths scale with 1/√n and that the point estimate stays the same.

    Args:
        documents: current number of documents.
        distance: from the point to the threshold.
        half_width: from the point to the end of the interval that faces the threshold.

    Returns:
        At least `documents`; None if the point equals the threshold: no number would decide it.
    """
    if distance == 0:
        return None
    return max(documents, ceil(documents * (half_width / abs(distance)) ** 2))
