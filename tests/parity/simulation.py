"""Simulated scores with a known truth: documents, clusters, sampling seeds, training runs, fractions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import NormalDist

import numpy as np

from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample, ResampledStratum
from evalsuite.reports.analysis.replicates import RunSpread, pooled_spread
from evalsuite.reports.statistics.bootstrap import Stratum
from evalsuite.reports.statistics.seeds import seed_effect

NORMAL = NormalDist()
LONGBENCH = (4, 4, 5, 6, 6, 7, 8, 8, 9, 10, 10, 12, 12, 14, 15, 16, 18, 20, 22, 24, 26)
"""Documents of 21 sets of fractions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A teacher and a student (or the runs of one recipe), and where their scores vary."""

    name: str
    sizes: tuple[int, ...]
    """Documents of each benchmark."""
    teacher: float = 0.6
    """True score; of fractions, the first parameter of their beta distribution."""
    student: float = 0.55
    correlation: float = 0.6
    """Of the latents of two checkpoints on one document."""
    cluster_size: int = 1
    icc: float = 0.0
    """Share of each checkpoint's own variance that the documents of a cluster share."""
    seeds: int = 1
    seed_deviation: float = 0.0
    """Between sampling seeds, as a fraction."""
    runs: int = 1
    run_deviation: float = 0.0
    """Between training runs of the student's recipe, as a fraction."""
    zeros: float | None = None
    """Scores are fractions, and this share of them is 0; None for right and wrong answers."""
    required: tuple[float, float] = (0.92, 1.0)
    """Range that coverage must lie in."""
    power: bool = True
    """Whether the power of the gate is simulated."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """One simulated report: column 0 is the teacher, then the runs of the student."""

    data: BootstrapSample
    students: tuple[int, ...]
    spread: RunSpread | None = field(default=None)


def draw(setting: Setting, rng: np.random.Generator, draws: int, worse: float = 0.0) -> Simulated:
    """Simulate scores.

    Args:
        setting: see `Setting`.
        rng: source of the scores; resamples depend on a name drawn from it.
        draws: bootstrap draws.
        worse: subtracted from the student's true score.
    """
    shifts = setting.run_deviation * rng.standard_normal(setting.runs)
    strata = []
    for size in setting.sizes:
        key = str(rng.integers(1 << 62))
        strata.append(ResampledStratum(_stratum(setting, size, rng, shifts - worse, key), draws))
    data = BootstrapSample(strata, [1.0] * len(strata))
    students = tuple(range(1, 1 + setting.runs))
    spread = pooled_spread([[data.level(s) for s in students]]) if setting.runs > 1 else None
    return Simulated(data, students, spread)


def _stratum(setting: Setting, size: int, rng: np.random.Generator, shifts: np.ndarray, key: str) -> Stratum:
    if setting.zeros is not None:
        return Stratum(_fractions(setting, size, rng, shifts), ("t", "s"), key)
    truths = [setting.teacher, *(setting.student + shifts)]
    hard = sqrt(setting.correlation) * rng.standard_normal(size)
    clusters = np.arange(size) // setting.cluster_size
    columns, variances = [], []
    for truth in truths:
        own = rng.standard_normal(size)
        if setting.icc:
            shared = rng.standard_normal(clusters.max() + 1)[clusters]
            own = sqrt(1 - setting.icc) * own + sqrt(setting.icc) * shared
        latent = hard + sqrt(1 - setting.correlation) * own
        if setting.seeds == 1:
            columns.append((latent < NORMAL.inv_cdf(truth)).astype(float))
            variances.append(0.0)
            continue
        # Each sampling seed has noise of its own on every document, and an ability of its own.
        abilities = np.clip(truth + setting.seed_deviation * rng.standard_normal(setting.seeds), 0.001, 0.999)
        noise = rng.standard_normal((setting.seeds, size))
        cuts = np.array([NORMAL.inv_cdf(float(ability)) for ability in abilities])
        values = (sqrt(0.5) * (latent + noise) < cuts[:, None]).astype(float)
        effect = seed_effect(values.T)
        assert effect is not None
        columns.append(values.mean(axis=0))
        variances.append(effect.seed_variance)
    return Stratum(
        np.column_stack(columns),
        tuple(f"c{i}" for i in range(len(columns))),
        key,
        clusters if setting.cluster_size > 1 else None,
        np.array(variances),
        np.full(len(columns), max(1, setting.seeds - 1)),
    )


def _fractions(setting: Setting, size: int, rng: np.random.Generator, shifts: np.ndarray) -> np.ndarray:
    """Zero-inflated beta scores; the student repeats half of the teacher's."""

    def scores(first: float) -> np.ndarray:
        return np.where(rng.random(size) < setting.zeros, 0.0, rng.beta(first, 2.0, size))

    teacher, student = scores(setting.teacher), scores(setting.student)
    student = np.where(rng.random(size) < 0.5, teacher, student)
    return np.column_stack([teacher, np.clip(student + shifts[0], 0.0, 1.0)])


def truths(setting: Setting, worse: float = 0.0) -> tuple[float, float]:
    """True mean scores of teacher and student."""
    if setting.zeros is not None:
        assert worse == 0
        teacher, student = (
            (1 - setting.zeros) * first / (first + 2.0) for first in (setting.teacher, setting.student)
        )
        return teacher, (teacher + student) / 2
    return setting.teacher, setting.student - worse


def points(setting: Setting, rng: np.random.Generator, simulations: int) -> Sequence[float]:
    """Point estimates of the difference, teacher − student, over simulations."""
    found = []
    for _ in range(simulations):
        shifts = setting.run_deviation * rng.standard_normal(setting.runs)
        means = [_stratum(setting, size, rng, shifts, "").means for size in setting.sizes]
        found.append(float(np.mean([mean[0] - mean[1:].mean() for mean in means])))
    return found
