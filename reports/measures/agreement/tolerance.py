"""Tolerance curves: the share of benchmarks on which a student is within a tolerance α of its teacher.

C_α is the share of benchmarks with student ≥ (1 − α)·teacher, a win-or-tie rate with a relative tolerance; α*
is the smallest tolerance at which half of the benchmarks are within it (after arXiv 2603.15590, whose names
are kept; only its abstract and captions were at hand, so its α* may use another share). `critical_all` is the
smallest tolerance for every benchmark; a maximum over benchmarks grows with noise, so it has no interval. The
same share over documents hardly depends on α where answers are right or wrong: there it is 1 − lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample
from evalsuite.reports.analysis.scopes import ALL, INFORMATIVE, Pool, scopes_of
from evalsuite.reports.statistics.intervals import Interval

ALPHAS = tuple(round(0.01 * i, 2) for i in range(51))
"""The tolerances of a curve."""
LEVEL = 0.95
_EQUAL = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class ToleranceRow:
    """The tolerance curve of one student in one scope under one protocol."""

    checkpoint: int
    protocol: str
    scope: str
    """`all` or `informative`."""
    benchmarks: tuple[str, ...]
    alphas: tuple[float, ...]
    curve: tuple[Interval, ...]
    """C_α at each of `alphas`: share of benchmarks, a group such as LongBench as one."""
    documents: tuple[float, ...]
    """The same share over documents, macro average."""
    critical_half: Interval
    """α*: the smallest α with C_α ≥ 1/2."""
    critical_all: float
    """The smallest α with C_α = 1 on these documents."""


def tolerance_rows(pool: Pool, informative: Mapping[int, Sequence[str]]) -> list[ToleranceRow]:
    """One row per student in the scopes `all` and `informative`.

    Args:
        pool: the cells of a protocol.
        informative: teacher → names of its informative benchmarks.
    """
    found = []
    for student, checkpoint in enumerate(pool.tensor.checkpoints):
        teacher = checkpoint.teacher
        if teacher is None:
            continue
        scopes = scopes_of(pool.cells, informative.get(teacher))
        for name in (name for name in (ALL, INFORMATIVE) if name in scopes):
            cells = pool.answered(pool.scope(name, scopes[name]), [student, teacher])
            if cells:
                found.append(_row(pool, name, cells, student, teacher))
    return found


def shortfall(student: np.ndarray, teacher: np.ndarray) -> np.ndarray:
    """1 − student ÷ teacher, at least 0: the smallest α with student ≥ (1 − α)·teacher.

    Args:
        student: scores of any shape, 0 or more.
        teacher: the same; where it is 0, nothing can be lost.
    """
    ratio = np.divide(student, teacher, out=np.ones_like(student), where=teacher > _EQUAL)
    lost = np.maximum(0.0, 1.0 - ratio)
    return np.asarray(np.where(lost < _EQUAL, 0.0, lost))


def critical(shortfalls: np.ndarray, weights: np.ndarray, share: float) -> np.ndarray:
    """Smallest α at which benchmarks of at least this share of the weight are within it.

    Args:
        shortfalls: [benchmarks, draws]
        weights: [benchmarks], with sum 1.
        share: 0 … 1.

    Returns:
        [draws]
    """
    order = np.argsort(shortfalls, axis=0, kind="stable")
    reached = np.cumsum(weights[order], axis=0) >= share - _EQUAL
    first = reached.argmax(axis=0)
    columns = np.arange(shortfalls.shape[1])
    return np.asarray(shortfalls[order[first, columns], columns])


def _row(pool: Pool, scope: str, cells: tuple[int, ...], student: int, teacher: int) -> ToleranceRow:
    data = pool.sample(cells)
    assert data is not None  # there are cells
    names = [pool.cells[i].benchmark.name for i in cells]
    points, draws, weights = [], [], []
    for name in dict.fromkeys(names):
        at = [i for i, each in enumerate(names) if each == name]
        part = BootstrapSample([data.strata[i] for i in at], data.weights[at])
        mine, theirs = part.mean({student: 1.0}), part.mean({teacher: 1.0})
        points.append(shortfall(np.array([mine.point]), np.array([theirs.point])))
        draws.append(shortfall(np.maximum(0.0, mine.draws), np.maximum(0.0, theirs.draws)))
        weights.append(float(data.weights[at].sum()))
    point, drawn, weight = np.array(points), np.array(draws), np.array(weights)
    alphas = np.array(ALPHAS)
    shares = [
        _interval(float(weight @ (point[:, 0] <= alpha + _EQUAL)), weight @ (drawn <= alpha + _EQUAL))
        for alpha in alphas
    ]
    documents = np.zeros(len(alphas))
    for part_weight, each in zip(data.weights, data.strata, strict=True):
        lost = shortfall(each.stratum.values[:, student], each.stratum.values[:, teacher])
        counts = np.searchsorted(np.sort(lost), alphas + _EQUAL, side="right")
        documents += part_weight * counts / len(lost)
    return ToleranceRow(
        checkpoint=student,
        protocol=pool.protocol,
        scope=scope,
        benchmarks=tuple(dict.fromkeys(names)),
        alphas=ALPHAS,
        curve=tuple(shares),
        documents=tuple(float(share) for share in documents),
        critical_half=_interval(float(critical(point, weight, 0.5)[0]), critical(drawn, weight, 0.5)),
        critical_all=float(critical(point, weight, 1.0)[0]),
    )


def _interval(point: float, draws: np.ndarray) -> Interval:
    """Percentile interval over the draws of all benchmarks."""
    low, high = np.quantile(draws, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    method = "percentiles of the bootstrap over documents"
    return Interval(point, min(float(low), point), max(float(high), point), method)
