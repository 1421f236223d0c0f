"""Right-or-wrong answers whose true scores and correlation are known, for simulations."""

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt
from statistics import NormalDist

import numpy as np
from scipy.special import ndtr

from evalsuite.reports.statistics.bootstrap import Stratum


@lru_cache
def pattern_chances(truths: tuple[float, ...], correlation: float) -> np.ndarray:
    """Probability of every pattern of right and wrong, column c being bit c. [2 ** columns]

    An answer is right where √ρ·(what the document is like) + √(1−ρ)·(luck) stays under a cut that gives its
    true score. Given the document the columns are independent, so one integral over it is exact.
    """
    if not 0 <= correlation < 1:
        raise ValueError(f"a latent correlation lies in 0 … 1, 1 excluded; got {correlation}")
    # A fine plain grid: near a correlation of 1 the integrand is almost a step, which few nodes would miss.
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


def answers(rng: np.random.Generator, documents: int, truths: Sequence[float], correlation: float) -> Stratum:
    """Throw one benchmark: a column of right-or-wrong answers per true score, patterns counted."""
    counts = rng.multinomial(documents, pattern_chances(tuple(truths), correlation))
    seen = np.flatnonzero(counts)
    values = (seen[:, None] >> np.arange(len(truths)) & 1).astype(float)
    return Stratum(values, counts[seen])


def contested(stratum: Stratum) -> int:
    """Documents on which the first two columns differ."""
    return int(stratum.counts[stratum.values[:, 0] != stratum.values[:, 1]].sum())
