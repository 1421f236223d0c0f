"""Our recovery beside the published one, on the benchmarks that both have, and whether the orders agree."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import stdev

import numpy as np

from evalsuite.reports.analysis.replicates import replicate_families
from evalsuite.reports.analysis.scopes import Pool
from evalsuite.reports.lineage import lineage_of
from evalsuite.reports.recovery import centred_recovery, recovery
from evalsuite.reports.references import (
    BENCHMARKS,
    CITATIONS,
    MODELS,
    linearizing_scores,
    macro_recovery,
    nearest_scale,
)
from evalsuite.reports.resampled import Estimate, Resampled
from evalsuite.reports.statistics.bootstrap import percentile_interval
from evalsuite.reports.statistics.interval import Interval
from evalsuite.reports.statistics.kendall import rank_agreement

TIE = 2.0
"""Standard deviations between training runs within which two recoveries are a tie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One student beside the student of arXiv 2504.14366 with the same mixer and the nearest size.

    Hybrids and mixers that the paper does not have stand there too, on the same benchmarks; checkpoints
    along the way do not.
    """

    subject: int
    model: str | None
    """As the paper calls it; None where it has none."""
    scale: str
    benchmarks: tuple[str, ...]
    """Those that both have, as the paper calls them."""
    ours: Estimate
    """Our recovery over just these benchmarks."""
    centred: Estimate
    """Ours above chance."""
    theirs: float | None
    """Theirs over just these, a fraction."""
    theirs_centred: float | None
    """Theirs above chance, by the chance levels of our documents; None where one is not known."""
    scores: dict[str, tuple[float, float]]
    """Benchmark → printed score of the student and of its teacher, as fractions."""
    citation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedOrder:
    """Whether our mixers come in the order of the paper: one finished student per mixer, of one recipe.

    Both recoveries order the students alike: they divide by one teacher.
    """

    subjects: tuple[int, ...]
    """Best first, by our recovery."""
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    tau: float | None
    """Kendall's τ-b of our order and theirs."""
    interval: Interval | None
    """Of τ over resamples of our documents."""
    inversions: tuple[tuple[int, int], ...]
    """Subjects (above here, above there) that are in opposite order."""
    deviation: float | None
    """Standard deviation of our recovery between training runs; None without such runs."""
    runs: int
    """How many training runs that is of."""
    ties: tuple[tuple[int, int], ...]
    """Subjects closer to each other here than `TIE` of them."""


def published_rows(pool: Pool) -> list[PublishedRow]:
    """Rows for every finished student, where a pure one of them has a mixer and a size of the paper."""
    rows = []
    for student, subject in enumerate(pool.panel.subjects):
        if subject.teacher is None:
            continue
        lineage = lineage_of(subject.plan)
        if not lineage.complete:
            continue
        model = None if lineage.is_hybrid else MODELS.get(lineage.main_mixer or "")
        scale = nearest_scale(pool.panel.subjects[subject.teacher].plan.parameters)
        if scale is not None:
            row = _row(pool, student, subject.teacher, model, scale)
            rows += [row] if row is not None else []
    return rows if any(row.model is not None for row in rows) else []


def _row(pool: Pool, student: int, teacher: int, model: str | None, scale: str) -> PublishedRow | None:
    teachers = linearizing_scores("teacher", scale)
    students = teachers if model is None else linearizing_scores(model, scale)
    shared = {
        name: cells
        for name, cells in _cells(pool).items()
        if name in students and all({student, teacher} <= set(pool.cells[i].present) for i in cells)
    }
    names = list(shared)
    theirs = macro_recovery([students[n] for n in names], [teachers[n] for n in names]) if names else None
    if theirs is None:
        return None
    data = _data(pool, shared, [student])
    chances = [_chance(pool, shared[name]) for name in names]
    known = [chance for chance in chances if chance is not None]
    centred, theirs_centred = Estimate(None, "the chance level of a benchmark is not known"), None
    if len(known) == len(names):
        centred = centred_recovery(data, student, teacher, pool.chance)
        theirs_centred = macro_recovery(
            [students[n] - 100 * c for n, c in zip(names, known, strict=True)],
            [teachers[n] - 100 * c for n, c in zip(names, known, strict=True)],
        )
    return PublishedRow(
        subject=student,
        model=model,
        scale=scale,
        benchmarks=tuple(names),
        ours=recovery(data, student, teacher),
        centred=centred,
        theirs=None if model is None else theirs,
        theirs_centred=None if model is None else theirs_centred,
        scores={} if model is None else {n: (students[n] / 100, teachers[n] / 100) for n in names},
        citation=f"{CITATIONS['linearizing_2025']}, Table 5",
    )


def _cells(pool: Pool) -> dict[str, list[int]]:
    """Name in the paper → our cells of it, where there are some."""
    found = {
        name: [i for i, cell in enumerate(pool.cells) if cell.benchmark.name in ours]
        for name, ours in BENCHMARKS.items()
    }
    return {name: cells for name, cells in found.items() if cells}


def _data(pool: Pool, shared: dict[str, list[int]], subjects: Sequence[int]) -> Resampled:
    cells = [i for members in shared.values() for i in members]
    data = pool.of(pool.scope("published", cells), subjects)
    assert data is not None  # `shared` has only answered cells
    return data


def _chance(pool: Pool, cells: Sequence[int]) -> float | None:
    """Mean chance level of a benchmark, as its cells are averaged."""
    levels = [pool.cells[i].chance for i in cells]
    known = [float(level.mean()) for level in levels if level is not None]
    return sum(known) / len(known) if len(known) == len(levels) else None


def published_orders(pool: Pool, rows: Sequence[PublishedRow]) -> list[PublishedOrder]:
    """One per teacher and scale with three mixers or more that were trained by one recipe."""
    groups: dict[tuple[int | None, str], list[PublishedRow]] = {}
    for row in rows:
        groups.setdefault((pool.panel.subjects[row.subject].teacher, row.scale), []).append(row)
    found = []
    for group in groups.values():
        chosen = _one_per_mixer(pool, group)
        if len(chosen) > 2:
            found.append(_order(pool, chosen, group))
    return found


def _one_per_mixer(pool: Pool, rows: Sequence[PublishedRow]) -> list[PublishedRow]:
    """Of finished students with all benchmarks and the recipe that has most mixers, the lowest seed."""
    most = max(len(row.benchmarks) for row in rows)
    whole = [row for row in rows if len(row.benchmarks) == most and row.model is not None]
    lineages = {row.subject: lineage_of(pool.panel.subjects[row.subject].plan) for row in whole}
    recipes = Counter(recipe for _, recipe in {(r.model, lineages[r.subject].recipe) for r in whole})
    if not recipes:
        return []
    recipe = max(recipes, key=lambda name: recipes[name])
    mine = [row for row in whole if lineages[row.subject].recipe == recipe]
    chosen: dict[str | None, PublishedRow] = {}
    for row in sorted(mine, key=lambda row: lineages[row.subject].seed or 0):
        chosen.setdefault(row.model, row)
    return sorted(chosen.values(), key=lambda row: -(row.ours.point or 0.0))


def _order(pool: Pool, chosen: Sequence[PublishedRow], group: Sequence[PublishedRow]) -> PublishedOrder:
    subjects = [row.subject for row in chosen]
    theirs = [row.theirs or 0.0 for row in chosen]
    names = set(chosen[0].benchmarks)
    shared = {name: cells for name, cells in _cells(pool).items() if name in names}
    data = _data(pool, shared, subjects)
    levels = [data.level(subject) for subject in subjects]
    agreement = rank_agreement(levels, theirs)
    alike = _alike(pool, group)
    deviation = stdev(alike) if alike else None
    ours = [row.ours.point or 0.0 for row in chosen]
    return PublishedOrder(
        subjects=tuple(subjects),
        ours=tuple(ours),
        theirs=tuple(theirs),
        tau=agreement.tau,
        interval=None if agreement.tau is None else _tau_interval(data, subjects, theirs, agreement.tau),
        inversions=tuple((subjects[i], subjects[j]) for i, j in agreement.inversions),
        deviation=deviation,
        runs=len(alike),
        ties=()
        if deviation is None
        else tuple(
            (subjects[i], subjects[j])
            for i, j in combinations(range(len(subjects)), 2)
            if abs(ours[i] - ours[j]) < TIE * deviation
        ),
    )


def _tau_interval(
    data: Resampled, subjects: Sequence[int], theirs: Sequence[float], tau: float
) -> Interval | None:
    """τ-b with a fixed order, for every resample of the documents."""
    draws = np.stack([data.level_draws(subject) for subject in subjects])
    pairs = list(combinations(range(len(subjects)), 2))
    signs = np.stack([np.sign(draws[i] - draws[j]) for i, j in pairs])
    fixed = np.array([np.sign(theirs[i] - theirs[j]) for i, j in pairs])
    scale = np.sqrt((signs != 0).sum(axis=0) * (fixed != 0).sum())
    taus = (signs * fixed[:, None]).sum(axis=0) / np.maximum(scale, 1)
    return percentile_interval(tau, taus, 0.95, "bootstrap over documents")


def _alike(pool: Pool, rows: Sequence[PublishedRow]) -> list[float]:
    """Recoveries of runs that differ by seed alone, of the largest such family; empty without one."""
    points = {row.subject: row.ours.point for row in rows if row.ours.point is not None}
    families = [[points[i] for i in family if i in points] for family in replicate_families(pool.panel)]
    known = [family for family in families if len(family) > 1]
    return max(known, key=len, default=[])
