"""Seeds: sampling seeds as a random effect crossed with documents, and means over training runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev

import numpy as np

from evalsuite.reports.statistics.intervals import Interval


@dataclass(frozen=True, slots=True)
class SeedEffect:
    """Variance components of y(document, seed) = μ + document + seed + rest."""

    mean: float
    documents: int
    seeds: int
    between_documents: float
    """Variance component; negative estimates of any component are set to 0."""
    between_seeds: float
    rest: float
    standard_error: float
    """Standard error of `mean`, with both documents and seeds as random samples."""
    degrees: float
    """Satterthwaite's degrees of freedom of the standard error."""

    @property
    def seed_variance(self) -> float:
        """Variance of `mean` due to the seeds."""
        return self.between_seeds / self.seeds

    def interval(self, level: float = 0.95) -> Interval:
        """Student's t interval of the mean."""
        from scipy.special import stdtrit  # scipy.stats takes a second to import

        half = float(stdtrit(self.degrees, 0.5 + level / 2)) * self.standard_error
        return Interval(self.mean, self.mean - half, self.mean + half, "documents × seeds, random effects")


def seed_effect(values: np.ndarray) -> SeedEffect | None:
    """Estimate the components by a two-way analysis of variance with one value per cell.

    Var(mean) = (MS_document + MS_seed − MS_rest) / (documents · seeds), with negative components set to 0.

    Args:
        values: [documents, seeds], complete.

    Returns:
        None for fewer than two documents or two seeds.
    """
    documents, seeds = values.shape
    if documents < 2 or seeds < 2:
        return None
    mean = float(values.mean())
    by_document, by_seed = values.mean(axis=1), values.mean(axis=0)
    ms_document = seeds * float(((by_document - mean) ** 2).sum()) / (documents - 1)
    ms_seed = documents * float(((by_seed - mean) ** 2).sum()) / (seeds - 1)
    residual = values - by_document[:, None] - by_seed[None, :] + mean
    ms_rest = float((residual**2).sum()) / ((documents - 1) * (seeds - 1))
    between_documents = max(0.0, (ms_document - ms_rest) / seeds)
    between_seeds = max(0.0, (ms_seed - ms_rest) / documents)
    variance = between_documents / documents + between_seeds / seeds + ms_rest / (documents * seeds)
    size = documents * seeds
    # Satterthwaite: the variance is a sum of mean squares, each with its own degrees of freedom.
    parts = [(ms_document / size, documents - 1)]
    if between_seeds > 0:
        parts += [(ms_seed / size, seeds - 1), (-ms_rest / size, (documents - 1) * (seeds - 1))]
    spread = sum(part**2 / degrees for part, degrees in parts)
    degrees = sum(part for part, _ in parts) ** 2 / spread if spread else float(documents - 1)
    return SeedEffect(
        mean, documents, seeds, between_documents, between_seeds, ms_rest, sqrt(variance), max(1.0, degrees)
    )


def over_runs(values: Sequence[float], level: float = 0.95) -> Interval:
    """Student's t interval of the mean of one value per training run; only runs are random.

    Raises:
        ValueError: fewer than two runs.
    """
    from scipy.special import stdtrit

    if len(values) < 2:
        raise ValueError("the variance between runs needs at least two runs")
    point = mean(values)
    half = float(stdtrit(len(values) - 1, 0.5 + level / 2)) * stdev(values) / sqrt(len(values))
    return Interval(point, point - half, point + half, f"t over {len(values)} runs")
