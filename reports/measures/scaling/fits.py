"""Scaling: how recovery grows with training tokens and with the size of the teacher.

Families that differ in their seeds alone are one curve, the mean over training runs; `families` says who
belongs to one. Curves of three points or more have a *slope*, the least-squares slope of recovery on log₂ of
the quantity (recovery per doubling), and an *exponent*, b of the power law 1 − recovery = a · quantity^(−b).
A curve has reached a *plateau* at the smallest value from which no later gain between neighbouring points is
proven. Two curves over the same teachers *cross* where their fitted lines do, inside their common range.
Intervals are over documents, of recoveries linearized about their points, and over training runs where a
recipe has several.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import exp, inf, log, sqrt

import numpy as np

from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.analysis.scopes import ALL, INFORMATIVE, Pool, Scope
from evalsuite.reports.measures.scaling.families import Quantity, curves_of, families_of
from evalsuite.reports.statistics.contrasts import Contrast, is_positive, ratio_interval, satterthwaite
from evalsuite.reports.statistics.intervals import Interval

MIN_POINTS = 3
MIN_RANGE = 1.5
"""Least factor between the ends of a family: over less, a slope per doubling is extrapolated."""
METHOD = "bootstrap over documents, linearized recovery"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """One curve of students under one protocol; recoveries are fractions."""

    protocol: str
    quantity: Quantity
    """`tokens`: training tokens. `size`: parameters of the teacher."""
    scope: str
    """`informative`, or `all` where no benchmark is."""
    name: str
    """Mixers of the students."""
    runs: int
    """Training runs of the recipe, whose mean is fitted."""
    checkpoints: tuple[int, ...]
    """By growing quantity, those of all runs."""
    values: tuple[float, ...]
    """The quantity at each point."""
    recoveries: tuple[float, ...]
    """The recovery at each point."""
    slope: Interval
    """Recovery per doubling."""
    slope_misfit: float
    """Root mean square distance of the recoveries from the line."""
    exponent: Interval | None
    """b of the power law 1 − recovery = a · quantity^(−b); None where a recovery may be 1 or more."""
    exponent_misfit: float | None
    """As `slope_misfit`, from the power law."""
    last_gain: Interval
    """Recovery per doubling between the last two points."""
    plateau: float | None
    """Smallest value from which no later gain is proven; None while the last gain is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossoverRow:
    """Where the fitted lines of two curves over the same teachers cross."""

    protocol: str
    quantity: Quantity
    first: tuple[int, ...]
    """Checkpoints of the curve with the greater slope."""
    second: tuple[int, ...]
    at: Interval
    """The quantity at which the first overtakes the second."""


@dataclass(frozen=True, slots=True)
class _Curve:
    quantity: Quantity
    scope: str
    name: str
    teachers: tuple[int, ...]
    """The teacher of each point."""
    runs: tuple[tuple[int, ...], ...]
    """Checkpoints of each training run, by growing quantity."""
    values: tuple[float, ...]
    """The quantity, ascending"""
    recoveries: tuple[Contrast, ...]
    """Means over the runs."""

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """Those of all runs, by growing quantity."""
        return tuple(i for point in zip(*self.runs, strict=True) for i in point)

    @property
    def method(self) -> str:
        """Name the method of the intervals."""
        runs = len(self.runs)
        return METHOD if runs == 1 else f"{METHOD}, and t over {runs} training runs"

    @property
    def has_slope(self) -> bool:
        """Whether there are points enough, over a range that is wide enough."""
        return len(self.values) >= MIN_POINTS and self.values[-1] >= MIN_RANGE * self.values[0]

    @property
    def x(self) -> np.ndarray:
        """log₂ of the quantity. [points]"""
        return np.log2(np.array(self.values))

    def fitted(self) -> tuple[Contrast, Contrast]:
        """Intercept at x = 0 and slope of the least-squares line."""
        return line(self.x, self.recoveries)

    def of_teachers(self, teachers: Sequence[int]) -> "_Curve":
        """The points of these teachers."""
        kept = [place for place, teacher in enumerate(self.teachers) if teacher in teachers]
        return replace(
            self,
            teachers=tuple(self.teachers[place] for place in kept),
            runs=tuple(tuple(run[place] for place in kept) for run in self.runs),
            values=tuple(self.values[place] for place in kept),
            recoveries=tuple(self.recoveries[place] for place in kept),
        )


def scaling_rows(
    pool: Pool, informative: Mapping[int, Sequence[str]]
) -> tuple[list[ScalingRow], list[CrossoverRow]]:
    """Slopes, power laws, plateaus and crossovers of all curves of a protocol.

    Args:
        pool: the cells of the protocol.
        informative: teacher → names of its informative benchmarks.
    """
    curves = [curve for curve in _curves(pool, informative) if curve.has_slope]
    crossovers = [
        row for one, other in combinations(curves, 2) if (row := _crossover(pool, one, other)) is not None
    ]
    return [_row(pool, curve) for curve in curves], crossovers


def line(x: np.ndarray, y: Sequence[Contrast]) -> tuple[Contrast, Contrast]:
    """Intercept at x = 0 and slope of the least-squares line through points [points]."""
    slopes = slope_weights(x)
    means = np.full(len(x), 1 / len(x))
    return combine(means - slopes * x.mean(), y), combine(slopes, y)


def slope_weights(x: np.ndarray) -> np.ndarray:
    """Weight of each point's y in the slope of the least-squares line. [points]"""
    offsets = x - x.mean()
    return np.asarray(offsets / (offsets @ offsets))


def combine(coefficients: Sequence[float] | np.ndarray, parts: Sequence[Contrast]) -> Contrast:
    """Σ coefficient · contrast, draw by draw."""
    total = parts[0].scaled(float(coefficients[0]))
    for coefficient, part in zip(coefficients[1:], parts[1:], strict=True):
        total = total.minus(part, -float(coefficient))
    return total


def recovery_contrast(data: BootstrapSample, student: int, teacher: int) -> Contrast | None:
    """Recovery with linearized draws: r + ((s − s̄) − r·(t − t̄)) ÷ t̄; None if it is undefined."""
    theirs = data.mean({teacher: 1.0})
    if not is_positive(theirs):
        return None
    mine = theirs.minus(data.contrast({teacher: 1.0, student: -1.0}))
    point = mine.point / theirs.point
    found = mine.minus(theirs, point).scaled(1 / theirs.point)
    return found.shifted(point)


def over_runs(runs: Sequence[Sequence[Contrast]], rng: np.random.Generator) -> list[Contrast]:
    """Mean over training runs at each point, whose draws vary with the runs as well; one run as it is.

    All points share the normal factors z and the χ² of Σ_r z_r d_r ÷ √(k (k − 1)) ÷ √(χ² ÷ (k − 1)), d the
    deviations of k runs from their mean. The draws of any linear combination of points, such as a slope, so
    contain its Student's t interval over runs.

    Args:
        runs: [runs][points].
        rng: of the factors.
    """
    count = len(runs)
    means = [combine(np.full(count, 1 / count), point) for point in zip(*runs, strict=True)]
    if count == 1:
        return means
    draws = len(means[0].draws)
    factors = (
        rng.standard_normal((draws, count)) / np.sqrt(rng.chisquare(count - 1, draws) / (count - 1))[:, None]
    )
    found = []
    for mean, point in zip(means, zip(*runs, strict=True), strict=True):
        deviations = np.array([each.point for each in point]) - mean.point
        variance = float(deviations @ deviations) / (count * (count - 1))
        noise = factors @ deviations / sqrt(count * (count - 1))
        degrees = satterthwaite([(mean.variance, mean.degrees), (variance, count - 1)])
        found.append(Contrast(mean.point, mean.draws + noise, degrees, mean.variance + variance))
    return found


def recoveries_of(
    pool: Pool, informative: Mapping[int, Sequence[str]], curves: Sequence[Sequence[Sequence[int]]]
) -> tuple[str, list[list[Contrast]]] | None:
    """Scope, and mean recovery over runs at each point of each curve; None if one is undefined.

    The informative benchmarks count, or all where a teacher has none; of these, students of one teacher are
    compared on those that all of them have.

    Args:
        pool: the cells of a protocol.
        informative: teacher → names of its informative benchmarks.
        curves: students [curves][runs][points], with one teacher at each point.
    """
    teachers = {i: pool.tensor.checkpoints[i].teacher for runs in curves for run in runs for i in run}
    scopes = {t: _scope(pool, informative.get(t, ())) for t in teachers.values() if t is not None}
    if len({scope.name for scope in scopes.values()}) > 1:
        scopes = dict.fromkeys(scopes, pool.scope(ALL, range(len(pool.cells))))
    recoveries: dict[int, Contrast | None] = {}
    samples = []
    for teacher, scope in scopes.items():
        students = [i for i, theirs in teachers.items() if theirs == teacher]
        data = pool.of(scope, [*students, teacher])
        if data is None:
            return None
        samples.append(data)
        recoveries |= {student: recovery_contrast(data, student, teacher) for student in students}
    if any(each is None for each in recoveries.values()):
        return None
    defined = {student: each for student, each in recoveries.items() if each is not None}
    means = []
    for runs in curves:
        rng = samples[0].rng("scaling", *(i for run in runs for i in run))
        means.append(over_runs([[defined[i] for i in run] for run in runs], rng))
    return next(iter(scopes.values())).name, means


def _curves(pool: Pool, informative: Mapping[int, Sequence[str]]) -> list[_Curve]:
    found = []
    for families in curves_of(families_of(pool.tensor)[0]):
        first, runs = families[0], tuple(family.checkpoints for family in families)
        made = recoveries_of(pool, informative, [runs])
        if made is None:
            continue
        scope, (recoveries,) = made
        checkpoints = pool.tensor.checkpoints
        checkpoint = checkpoints[first.checkpoints[0]]
        found.append(
            _Curve(
                quantity=first.quantity,
                scope=scope,
                name=lineage_of(checkpoint).describe_mixers() or checkpoint.label_in_run,
                teachers=tuple(t for i in first.checkpoints if (t := checkpoints[i].teacher) is not None),
                runs=runs,
                values=tuple(map(float, first.values)),
                recoveries=tuple(recoveries),
            )
        )
    return found


def _scope(pool: Pool, names: Sequence[str]) -> Scope:
    cells = [i for i, cell in enumerate(pool.cells) if cell.benchmark.name in names]
    return pool.scope(INFORMATIVE, cells) if cells else pool.scope(ALL, range(len(pool.cells)))


def _row(pool: Pool, curve: _Curve) -> ScalingRow:
    gains = [
        later.minus(earlier).scaled(float(1 / (b - a)))
        for (a, earlier), (b, later) in pairwise(zip(curve.x, curve.recoveries, strict=True))
    ]
    intervals = [gain.interval(method=curve.method) for gain in gains]
    plateau = None
    for place in range(len(gains) - 1, -1, -1):
        if intervals[place].low > 0:
            break
        plateau = curve.values[place]
    recoveries = np.array([each.point for each in curve.recoveries])
    intercept, slope = curve.fitted()
    law = power_law(curve.values, curve.recoveries)
    return ScalingRow(
        protocol=pool.protocol,
        quantity=curve.quantity,
        scope=curve.scope,
        name=curve.name,
        runs=len(curve.runs),
        checkpoints=curve.checkpoints,
        values=curve.values,
        recoveries=tuple(recoveries.tolist()),
        slope=slope.interval(method=curve.method),
        slope_misfit=misfit(intercept.point + slope.point * curve.x, recoveries),
        exponent=None if law is None else law[1].interval(method=curve.method),
        exponent_misfit=None
        if law is None
        else misfit(1 - exp(law[0]) * np.array(curve.values) ** -law[1].point, recoveries),
        last_gain=intervals[-1],
        plateau=plateau,
    )


def power_law(values: Sequence[float], recoveries: Sequence[Contrast]) -> tuple[float, Contrast] | None:
    """ln a and b of 1 − recovery = a · value^(−b), by least squares of the logarithms.

    Logarithms are linearized about their points; None where recovery is not proven to be below 1.
    """
    logs = []
    for recovery in recoveries:
        lost = recovery.scaled(-1).shifted(1)
        if not is_positive(lost):
            return None
        logs.append(lost.scaled(1 / lost.point).shifted(log(lost.point) - 1))
    intercept, slope = line(np.log(np.array(values)), logs)
    return intercept.point, slope.scaled(-1)


def misfit(fitted: np.ndarray, points: np.ndarray) -> float:
    """Root mean square distance of points from what was fitted to them. [points]"""
    return float(np.sqrt(((fitted - points) ** 2).mean()))


def _crossover(pool: Pool, one: _Curve, other: _Curve) -> CrossoverRow | None:
    """None if the slopes do not differ by Fieller's criterion, or the lines cross outside their range."""
    if (one.quantity, one.scope) != (other.quantity, other.scope):
        return None
    common = set(one.teachers) & set(other.teachers)
    one, other = one.of_teachers(tuple(common)), other.of_teachers(tuple(common))
    if not (one.has_slope and other.has_slope):
        return None
    first, second = (one, other) if one.fitted()[1].point >= other.fitted()[1].point else (other, one)
    (intercept, slope), (other_intercept, other_slope) = first.fitted(), second.fitted()
    steeper, behind = slope.minus(other_slope), other_intercept.minus(intercept)
    if not is_positive(steeper):
        return None
    method = max(one.method, other.method, key=len)
    at = ratio_interval(behind, steeper, method=method)
    low, high = (max(one.x[0], other.x[0]), min(one.x[-1], other.x[-1]))
    if not low <= at.point <= high:
        return None
    # Logarithms of tokens or parameters; nothing has 2²⁰⁰ of them.
    point, first_end, last_end = (inf if x > 200 else 2.0**x for x in (at.point, at.low, at.high))
    return CrossoverRow(
        protocol=pool.protocol,
        quantity=one.quantity,
        first=first.checkpoints,
        second=second.checkpoints,
        at=Interval(point, first_end, last_end, method),
    )
