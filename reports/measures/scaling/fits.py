"""Scaling: how recovery grows with training tokens and with the size of the teacher.

Families of three points or more have a slope; `families` says who belongs to one. The *slope* is the
least-squares slope of recovery on log₂ of the quantity: recovery per doubling. It has reached a *plateau* at
the smallest value from which no later gain between neighbouring points is proven. Two families of one teacher
*cross* where their fitted lines do, inside their common range. Intervals are over documents, of recoveries
linearized about their points; another training run may differ by more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import inf

import numpy as np

from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.analysis.scopes import ALL, INFORMATIVE, Pool, Scope
from evalsuite.reports.measures.scaling.families import Quantity, families_of
from evalsuite.reports.statistics.contrasts import Contrast, is_positive, ratio_interval
from evalsuite.reports.statistics.intervals import Interval

MIN_POINTS = 3
MIN_RANGE = 1.5
"""Least factor between the ends of a family: over less, a slope per doubling is extrapolated."""
METHOD = "bootstrap over documents, linearized recovery"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRow:
    """One family of students under one protocol; recoveries are fractions."""

    protocol: str
    quantity: Quantity
    """`tokens`: training tokens. `size`: parameters of the teacher."""
    scope: str
    """`informative`, or `all` where no benchmark is."""
    name: str
    """Mixers of the students."""
    checkpoints: tuple[int, ...]
    """By growing quantity."""
    values: tuple[float, ...]
    """The quantity of each."""
    recoveries: tuple[float, ...]
    slope: Interval
    """Recovery per doubling."""
    last_gain: Interval
    """Recovery per doubling between the last two points."""
    plateau: float | None
    """Smallest value from which no later gain is proven; None while the last gain is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossoverRow:
    """Where the fitted lines of two families of one teacher cross."""

    protocol: str
    quantity: Quantity
    first: tuple[int, ...]
    """Checkpoints of the family with the greater slope."""
    second: tuple[int, ...]
    at: Interval
    """The quantity at which the first overtakes the second."""


@dataclass(frozen=True, slots=True)
class _Family:
    quantity: Quantity
    scope: str
    name: str
    teacher: int | None
    """The common teacher; None if each student has its own."""
    checkpoints: tuple[int, ...]
    values: tuple[float, ...]
    """The quantity, ascending"""
    recoveries: tuple[Contrast, ...]

    @property
    def x(self) -> np.ndarray:
        """log₂ of the quantity. [points]"""
        return np.log2(np.array(self.values))

    def fitted(self) -> tuple[Contrast, Contrast]:
        """Intercept at x = 0 and slope of the least-squares line."""
        offsets = self.x - self.x.mean()
        slopes = offsets / (offsets @ offsets)
        means = np.full(len(self.x), 1 / len(self.x))
        slope = combine(slopes, self.recoveries)
        return combine(means - slopes * self.x.mean(), self.recoveries), slope


def scaling_rows(
    pool: Pool, informative: Mapping[int, Sequence[str]]
) -> tuple[list[ScalingRow], list[CrossoverRow]]:
    """Slopes, plateaus and crossovers of all families of a protocol.

    Args:
        pool: the cells of the protocol.
        informative: teacher → names of its informative benchmarks.
    """
    families = _families(pool, informative)
    rows = [_row(pool, family) for family in families]
    crossovers = [
        row
        for one, other in combinations(families, 2)
        if one.teacher is not None and (one.quantity, one.teacher) == (other.quantity, other.teacher)
        if (row := _crossover(pool, one, other)) is not None
    ]
    return rows, crossovers


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


def _families(pool: Pool, informative: Mapping[int, Sequence[str]]) -> list[_Family]:
    found = []
    for family in families_of(pool.tensor)[0]:
        if len(family.values) >= MIN_POINTS and family.values[-1] >= MIN_RANGE * family.values[0]:
            by_value = dict(zip(family.values, family.checkpoints, strict=True))
            made = _family(pool, informative, family.quantity, by_value)
            found += [] if made is None else [made]
    return found


def _family(
    pool: Pool, informative: Mapping[int, Sequence[str]], quantity: Quantity, by_value: dict[float, int]
) -> _Family | None:
    checkpoints = tuple(by_value.values())
    teachers = [pool.tensor.checkpoints[i].teacher for i in checkpoints]
    scopes = [_scope(pool, informative.get(t, ()) if t is not None else ()) for t in teachers]
    if len({scope.name for scope in scopes}) > 1:
        scopes = [pool.scope(ALL, range(len(pool.cells)))] * len(scopes)
    recoveries = []
    for student, teacher, scope in zip(checkpoints, teachers, scopes, strict=True):
        assert teacher is not None  # `_families` leaves checkpoints without one out
        together = checkpoints if quantity == "tokens" else (student,)
        data = pool.of(scope, [*together, teacher])
        contrast = None if data is None else recovery_contrast(data, student, teacher)
        if contrast is None:
            return None
        recoveries.append(contrast)
    plan = pool.tensor.checkpoints[checkpoints[0]].plan
    return _Family(
        quantity=quantity,
        scope=scopes[0].name,
        name=lineage_of(plan).describe_mixers() or plan.label,
        teacher=teachers[0] if quantity == "tokens" else None,
        checkpoints=checkpoints,
        values=tuple(float(value) for value in by_value),
        recoveries=tuple(recoveries),
    )


def _scope(pool: Pool, names: Sequence[str]) -> Scope:
    cells = [i for i, cell in enumerate(pool.cells) if cell.benchmark.name in names]
    return pool.scope(INFORMATIVE, cells) if cells else pool.scope(ALL, range(len(pool.cells)))


def _row(pool: Pool, family: _Family) -> ScalingRow:
    gains = [
        later.minus(earlier).scaled(float(1 / (b - a)))
        for (a, earlier), (b, later) in pairwise(zip(family.x, family.recoveries, strict=True))
    ]
    intervals = [gain.interval(method=METHOD) for gain in gains]
    plateau = None
    for place in range(len(gains) - 1, -1, -1):
        if intervals[place].low > 0:
            break
        plateau = family.values[place]
    return ScalingRow(
        protocol=pool.protocol,
        quantity=family.quantity,
        scope=family.scope,
        name=family.name,
        checkpoints=family.checkpoints,
        values=family.values,
        recoveries=tuple(each.point for each in family.recoveries),
        slope=family.fitted()[1].interval(method=METHOD),
        last_gain=intervals[-1],
        plateau=plateau,
    )


def _crossover(pool: Pool, one: _Family, other: _Family) -> CrossoverRow | None:
    """None if the slopes do not differ by Fieller's criterion, or the lines cross outside their range."""
    first, second = (one, other) if one.fitted()[1].point >= other.fitted()[1].point else (other, one)
    (intercept, slope), (other_intercept, other_slope) = first.fitted(), second.fitted()
    steeper, behind = slope.minus(other_slope), other_intercept.minus(intercept)
    if not is_positive(steeper):
        return None
    at = ratio_interval(behind, steeper, method=METHOD)
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
        at=Interval(point, first_end, last_end, METHOD),
    )
