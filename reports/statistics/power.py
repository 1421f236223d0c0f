"""Power and false alarms of a gate's rule before anything runs.

The outcome of a rule on right and wrong answers depends on a few counts: of the documents that both, one or
neither of two checkpoints has right. The counts are drawn (a numerical integration over their multinomial
distribution, with a fixed seed), and each draw is decided by the ends of the interval that the gate would
compute: Tango's or Wilson's in closed form, those of the bootstrap by their Cornish-Fisher expansion
(Hall, The Bootstrap and Edgeworth Expansion, 1992, chapter 3). No document is resampled.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, pi, sqrt

import numpy as np

from evalsuite.reports.statistics.bootstrap import DRAWS
from evalsuite.reports.statistics.contrasts import EDGE
from evalsuite.reports.statistics.intervals import normal_quantile, student_quantile
from evalsuite.reports.statistics.paired import FEW, level_bounds, score_bounds

_INTEGRATION = 20_000
"""Draws of counts; a rate of one half then has a standard error of 0.35 points."""
_SEARCH = 4_000
_MOST_DOCUMENTS = 10**9


@dataclass(frozen=True, slots=True)
class Truth:
    """What is true of two checkpoints on one document, as fractions."""

    score: float
    """Of the first: the teacher, or the baseline."""
    churn: float
    """Share of documents that exactly one of the two has right."""
    loss: float
    """Score of the first − score of the second."""
    chance: float = 0.0

    @property
    def problem(self) -> str | None:
        """Why no two checkpoints are like this; None if some are."""
        first, second = (self.churn + self.loss) / 2, (self.churn - self.loss) / 2
        if self.churn < abs(self.loss):
            return (
                f"a loss of {100 * self.loss:g} points changes at least {100 * abs(self.loss):g} % of the "
                f"answers, more than the stated churn of {100 * self.churn:g} %"
            )
        if first > self.score or second > 1 - self.score:
            return (
                f"a score of {100 * self.score:g} % and a loss of {100 * self.loss:g} points exclude a churn "
                f"of {100 * self.churn:g} %"
            )
        return None

    @property
    def shares(self) -> tuple[float, float, float, float]:
        """Shares of the documents that both, only the first, only the second, and neither have right."""
        first, second = (self.churn + self.loss) / 2, (self.churn - self.loss) / 2
        return self.score - first, first, second, 1 - self.score - second


@dataclass(frozen=True, slots=True)
class Margin:
    """What a document adds to the margin of a rule: slope · difference + lead · level + constant.

    A rule is met where the mean margin is at least 0.
    """

    shares: Sequence[float]
    """Probability of each kind of document. [kinds]"""
    difference: Sequence[float]
    """Second − first (or a gap) on each kind. [kinds]"""
    level: Sequence[float]
    """Score of one checkpoint on each kind. [kinds]"""
    slope: float
    lead: float
    constant: float
    counted: float = 1.0
    """Share of a benchmark's documents that the rule counts."""

    @property
    def values(self) -> np.ndarray:
        """The margin on each kind of document. [kinds]"""
        return self.slope * np.asarray(self.difference) + self.lead * np.asarray(self.level) + self.constant

    def reversed(self) -> "Margin":
        """The margin of the opposite demand: at least becomes at most."""
        return replace(self, slope=-self.slope, lead=-self.lead, constant=-self.constant)

    @property
    def mean(self) -> float:
        """The true margin."""
        return float(self.values @ np.asarray(self.shares))

    @property
    def variance(self) -> float:
        """Of one document."""
        return float((self.values - self.mean) ** 2 @ np.asarray(self.shares))


PlannedMargin = Callable[[Truth, float], Margin]
"""(truth, threshold as a fraction) → the margin of a rule."""
_DIFFERENCE, _FIRST = (0.0, -1.0, 1.0, 0.0), (1.0, 1.0, 0.0, 0.0)


def drop_margin(truth: Truth, most: float) -> Margin:
    """First − second is at most `most`."""
    return Margin(truth.shares, _DIFFERENCE, _FIRST, 1.0, 0.0, most)


def ratio_margin(truth: Truth, least: float) -> Margin:
    """Second ÷ first is at least `least`."""
    return Margin(truth.shares, _DIFFERENCE, _FIRST, 1.0, 1 - least, 0.0)


def normalized_ratio_margin(truth: Truth, least: float) -> Margin:
    """(second − chance) ÷ (first − chance) is at least `least`."""
    return replace(ratio_margin(truth, least), constant=-(1 - least) * truth.chance)


def score_margin(truth: Truth, least: float) -> Margin:
    """The second's score is at least `least`."""
    share = truth.score - truth.loss
    return Margin((share, 1 - share), (0.0, 0.0), (1.0, 0.0), 0.0, 1.0, -least)


def retained_margin(truth: Truth, least: float) -> Margin:
    """Of what the first has right, the second has at least the share `least` right."""
    both, only_first, *_ = truth.shares
    share = both / (both + only_first)
    return Margin((share, 1 - share), (0.0, 0.0), (1.0, 0.0), 0.0, 1.0, -least, truth.score)


def gap_margin(truth: Truth, most: float) -> Margin:
    """Drop under generation − drop under log-likelihood is at most `most`; all of the loss is in generation.

    Both protocols have the same churn, independently of each other.
    """
    shares, values = [], []
    for share, generation in zip(truth.shares, _DIFFERENCE, strict=True):
        for other, loglikelihood in zip(replace(truth, loss=0.0).shares, _DIFFERENCE, strict=True):
            shares.append(share * other)
            values.append(generation - loglikelihood)
    return Margin(shares, values, [0.0] * len(values), 1.0, 0.0, most)


@dataclass(frozen=True, slots=True)
class PlannedStratum:
    """The documents of one benchmark and its weight in an average."""

    documents: int
    weight: float
    margin: Margin
    gain: Margin | None = None
    """The margin to the threshold on a gain, of a rule in both directions."""

    @property
    def margins(self) -> tuple[Margin, ...]:
        """One for each threshold."""
        return (self.margin,) if self.gain is None else (self.margin, self.gain)

    @property
    def counted(self) -> int:
        """Documents that the rule counts; at least 2, as a bootstrap needs."""
        return max(2, round(self.documents * self.margin.counted))


@dataclass(frozen=True, slots=True)
class DecisionRates:
    """How often a rule fails and passes; else it is inconclusive."""

    fails: float
    passes: float


@dataclass(frozen=True, slots=True)
class Level:
    """How a rule is decided."""

    passing: float
    """Tail beyond the end of the interval that must meet the requirement."""
    failing: float
    """The same for a proven regression: smaller, by Holm's correction over several rules."""
    spread: float = 0.0
    """Standard deviation between training runs, as a fraction; 0: over documents alone."""
    spread_degrees: float = 1.0


def decision_rates(
    strata: Sequence[PlannedStratum], level: Level, draws: int = _INTEGRATION
) -> DecisionRates:
    """How often the gate fails and passes a rule.

    Args:
        strata: the benchmarks of the rule; weights sum to 1.
        level: tails of its tests. The rule must overcome the smallest level of Holm's correction, as where
            every other rule is met.
        draws: number of draws of the counts.
    """
    rng = np.random.default_rng(0)
    counts = [rng.multinomial(each.counted, _probabilities(each.margin), size=draws) for each in strata]
    # Training runs, and the gate's own draws, of which it reads its ends.
    luck, *noises = rng.standard_normal((3, draws))
    sides = len(strata[0].margins)
    level = replace(level, failing=level.failing / sides)
    fails, passes = np.zeros(draws, dtype=bool), np.ones(draws, dtype=bool)
    for side in range(sides):
        point, below, above = (np.zeros(draws) for _ in range(3))
        for stratum, drawn in zip(strata, counts, strict=True):
            mean, low, high = _ends(stratum.margins[side], drawn, level)
            point += stratum.weight * mean
            below += (stratum.weight * low) ** 2
            above += (stratum.weight * high) ** 2
        if level.spread:
            point += (-1) ** side * level.spread * luck
            below += (level.spread * student_quantile(level.spread_degrees, 1 - level.passing)) ** 2
            above += (level.spread * student_quantile(level.spread_degrees, 1 - level.failing)) ** 2
        below = np.sqrt(below) * (1 + _noise_of_quantile(level.passing) * noises[0])
        above = np.sqrt(above) * (1 + _noise_of_quantile(level.failing) * noises[1])
        fails |= (point < 0) & (point + above <= 0)
        passes &= point - below >= 0
    return DecisionRates(float(fails.mean()), float(passes.mean()))


def documents_for_power(strata: Sequence[PlannedStratum], level: Level, power: float) -> int | None:
    """Number of documents over all strata, in their proportions, at which the rule fails with `power`.

    A bisection around the normal approximation n·((z₁₋α + z_power)·σ ÷ margin)²; two digits are significant.

    Returns:
        None if the true margin is not negative, or no feasible number suffices.
    """
    margin = sum(each.weight * each.margin.mean for each in strata)
    if margin >= -1e-12:
        return None
    variance = sum(each.weight**2 * each.margin.variance / each.counted for each in strata)
    failing = level.failing / len(strata[0].margins)
    needed = (normal_quantile(1 - failing) + normal_quantile(power)) ** 2 * variance / margin**2
    now = sum(each.documents for each in strata)

    def reaches(factor: float) -> bool:
        scaled = [replace(each, documents=max(1, round(each.documents * factor))) for each in strata]
        return decision_rates(scaled, level, _SEARCH).fails >= power

    low, high = max(needed, 2 / now) / 4, max(needed, 2 / now)
    while not reaches(high):
        low, high = high, 2 * high
        if high * now > _MOST_DOCUMENTS:
            return None
    while high / low > 1.02:
        middle = sqrt(low * high)
        low, high = (low, middle) if reaches(middle) else (middle, high)
    found = ceil(high * now)
    unit = 10 ** max(0, len(str(found)) - 2)
    return ceil(found / unit) * unit


def _noise_of_quantile(tail: float) -> float:
    """Relative standard error of the distance from a mean to a quantile of `DRAWS` normal draws."""
    edge = max(tail, EDGE)
    z = -normal_quantile(edge)
    return sqrt(edge * (1 - edge) / DRAWS) / (exp(-z * z / 2) / sqrt(2 * pi)) / z


def _probabilities(margin: Margin) -> np.ndarray:
    shares = np.clip(np.asarray(margin.shares, dtype=float), 0.0, 1.0)
    return np.asarray(shares / shares.sum())


def _ends(margin: Margin, counts: np.ndarray, level: Level) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean margin of each draw, and the distances to the passing end below and the failing end above it.

    Args:
        margin: of the kinds of documents.
        counts: of each kind. [draws, kinds]
        level: tails of the ends.
    """
    documents = int(counts[0].sum())
    mean = counts @ margin.values / documents
    degrees = documents - 1.0
    if not margin.slope:
        share = counts @ np.asarray(margin.level) / documents
        distances = [
            level_bounds(share, documents, 1.0, np.array(sign * student_quantile(degrees, 1 - tail))) - share
            for sign, tail in ((-1.0, level.passing), (1.0, level.failing))
        ]
        low, high = (margin.lead * np.abs(each) for each in distances)
        return mean, low, high
    low, high = (
        _bootstrap_end(margin.values, counts, side, tail)
        for side, tail in ((-1, level.passing), (1, level.failing))
    )
    difference = np.asarray(margin.difference)
    few = np.flatnonzero(counts @ (difference != 0) < FEW)
    if len(few):
        wins = counts[few] @ np.maximum(difference, 0)
        losses = counts[few] @ np.maximum(-difference, 0)
        teacher = margin.lead * np.asarray(margin.level)
        for end, side, tail in ((low, -1, level.passing), (high, 1, level.failing)):
            upward = side * margin.slope > 0
            score = abs(margin.slope) * _score_end(wins, losses, documents, upward, tail)
            end[few] = np.hypot(score, _bootstrap_end(teacher, counts[few], side, tail))
    return mean, low, high


def _bootstrap_end(values: np.ndarray, counts: np.ndarray, side: int, tail: float) -> np.ndarray:
    """Distance from a mean to the end of its bootstrap interval on one side; skewness moves it. [draws]"""
    documents = int(counts[0].sum())
    mean = counts @ values / documents
    deviations = values - mean[:, None]
    variance = (counts * deviations**2).sum(axis=1) / (documents - 1)
    third = (counts * deviations**3).sum(axis=1) / documents
    deviation = np.sqrt(np.maximum(variance, 1e-12))
    edge = max(tail, EDGE)
    t, z = student_quantile(documents - 1.0, 1 - edge), normal_quantile(1 - edge)
    skewness = side * third / deviation**3 / sqrt(documents)
    end = deviation / sqrt(documents) * (t + skewness * (z * z - 1) / 6)
    stretch = student_quantile(documents - 1.0, 1 - tail) / t
    return np.asarray(np.where(variance > 1e-12, np.maximum(end, 0.0) * stretch, 0.0))


def _score_end(wins: np.ndarray, losses: np.ndarray, documents: int, upward: bool, tail: float) -> np.ndarray:
    """Distance from a paired difference to the end of Tango's interval on one side. [draws]"""
    edge = max(tail, EDGE)
    t = student_quantile(documents - 1.0, 1 - edge)
    stretch = student_quantile(documents - 1.0, 1 - tail) / t
    pairs, at = np.unique(np.column_stack([wins, losses]), axis=0, return_inverse=True)
    found = [
        abs(
            float(score_bounds(np.array([-t if upward else t]), won, lost, documents)[0])
            - (won - lost) / documents
        )
        for won, lost in pairs
    ]
    return stretch * np.asarray(found)[at.ravel()]
