"""Simulated binary scores with known true scores and correlation."""

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt
from statistics import NormalDist

import numpy as np
from scipy.special import ndtr

from evalsuite.reports.statistics.bootstrap import Stratum


@lru_cache
def pattern_probabilities(truths: tuple[float, ...], correlation: float) -> np.ndarray:
    """Probability of every pattern of correct and wrong, column c being bit c. [2 ** columns]

    A response is correct if √ρ·(difficulty of the document) + √(1−ρ)·(noise) is below a cut that gives the
    true score. Given the difficulty the columns are independent, so one integral over it is exact.
    """
    if not 0 <= correlation < 1:
        raise ValueError(f"the latent correlation must be in 0 … 1, 1 excluded; got {correlation}")
    # A fine uniform grid: near a correlation of 1 the integrand is almost a step.
    nodes = np.linspace(-8.5, 8.5, 17_001)
    weights = np.exp(-nodes * nodes / 2)
    weights = weights / weights.sum()
    normal = NormalDist()
    right = [
        ndtr((normal.inv_cdf(truth) - sqrt(correlation) * nodes) / sqrt(1 - correlation)) for truth in truths
    ]
    chances = [
        weights @ np.prod([p if code >> c & 1 else 1 - p for c, p in enumerate(right)], axis=0)
        for code in range(1 << len(truths))
    ]
    return np.array(chances) / sum(chances)


def draw_scores(
    rng: np.random.Generator, documents: int, truths: Sequence[float], correlation: float
) -> Stratum:
    """Draw the scores of one benchmark: one column per true score."""
    counts = rng.multinomial(documents, pattern_probabilities(tuple(truths), correlation))
    seen = np.flatnonzero(counts)
    values = (seen[:, None] >> np.arange(len(truths)) & 1).astype(float)
    return Stratum(values, counts[seen])


def count_discordant(stratum: Stratum) -> int:
    """Number of documents on which the first two columns differ."""
    return int(stratum.counts[stratum.values[:, 0] != stratum.values[:, 1]].sum())
