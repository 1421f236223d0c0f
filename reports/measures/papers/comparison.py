"""Comparison with arXiv 2504.14366: recovery on the common benchmarks, and agreement on the mixers' order."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt

import numpy as np

from evalsuite.reports import formatting
from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample, Estimate
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.analysis.pairs import proven_pairs
from evalsuite.reports.analysis.recovery import chance_normalized_recovery, recovery
from evalsuite.reports.analysis.replicates import RunSpread
from evalsuite.reports.analysis.scopes import Pool
from evalsuite.reports.references.papers import (
    BENCHMARKS,
    CITATIONS,
    MODELS,
    linearizing_scores,
    macro_recovery,
    nearest_scale,
)
from evalsuite.reports.report import Report
from evalsuite.reports.statistics.agreement import rank_agreement
from evalsuite.reports.statistics.intervals import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperRow:
    """One student compared with the student of arXiv 2504.14366 of the same mixer and the nearest size.

    Hybrids and mixers that the paper does not have get a row on the same benchmarks, without paper scores;
    intermediate checkpoints get none.
    """

    checkpoint: int
    model: str | None
    """Name of the paper's student; None if there is none."""
    scale: str
    benchmarks: tuple[str, ...]
    """Common benchmarks, by their names in the paper."""
    recovery: Estimate
    """Our recovery over these benchmarks."""
    chance_normalized_recovery: Estimate
    """Our chance-normalized recovery over these benchmarks."""
    paper_recovery: float | None
    """The paper's recovery over these benchmarks, a fraction."""
    paper_chance_normalized_recovery: float | None
    """The same, normalized with the chance levels of our documents; None if one is unknown."""
    scores: dict[str, tuple[float, float]]
    """Benchmark → printed scores of the paper's student and its teacher, as fractions."""
    citation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperOrder:
    """Agreement of our order of mixers with the paper's: one finished student per mixer, of one recipe.

    Recovery and chance-normalized recovery give the same order, because all students share one teacher.
    """

    checkpoints: tuple[int, ...]
    """Best first, by our recovery."""
    recoveries: tuple[float, ...]
    paper_recoveries: tuple[float, ...]
    tau: float | None
    """Kendall's τ-b of our order and the paper's."""
    interval: Interval | None
    """Interval of τ over resamples of our documents and, where their spread is known, training runs."""
    inversions: tuple[tuple[int, int], ...]
    """Checkpoints (higher here, higher in the paper) that are in opposite order."""
    deviation: float | None
    """Standard deviation of our recovery between training runs, pooled over recipes; None without
    replicates."""
    degrees: float
    """Degrees of freedom of `deviation`: runs − recipes."""
    ties: tuple[tuple[int, int], ...]
    """Checkpoints that are not proven different here, after Holm's correction over all pairs; with the spread
    between runs, if that is known."""


def paper_rows(pool: Pool) -> list[PaperRow]:
    """One row per finished student; empty unless a pure student matches a mixer and a size of the paper."""
    rows = []
    for student, checkpoint in enumerate(pool.tensor.checkpoints):
        if checkpoint.teacher is None:
            continue
        lineage = lineage_of(checkpoint)
        if not lineage.complete:
            continue
        model = MODELS.get(lineage.main_mixer or "") if lineage.is_plain else None
        scale = nearest_scale(pool.tensor.checkpoints[checkpoint.teacher].parameters)
        if scale is not None:
            row = _row(pool, student, checkpoint.teacher, model, scale)
            rows += [row] if row is not None else []
    return rows if any(row.model is not None for row in rows) else []


def _row(pool: Pool, student: int, teacher: int, model: str | None, scale: str) -> PaperRow | None:
    teachers = linearizing_scores("teacher", scale)
    students = teachers if model is None else linearizing_scores(model, scale)
    shared = {name: cells for name, cells in _cells(pool, {student, teacher}).items() if name in students}
    names = list(shared)
    theirs = macro_recovery([students[n] for n in names], [teachers[n] for n in names]) if names else None
    if theirs is None:
        return None
    data = _data(pool, shared, [student])
    chances = [_chance(pool, shared[name]) for name in names]
    known = [chance for chance in chances if chance is not None]
    normalized, paper_normalized = Estimate(None, "the chance level of a benchmark is not known"), None
    if len(known) == len(names):
        normalized = chance_normalized_recovery(data, student, teacher, pool.chance)
        paper_normalized = macro_recovery(
            [students[n] - 100 * c for n, c in zip(names, known, strict=True)],
            [teachers[n] - 100 * c for n, c in zip(names, known, strict=True)],
        )
    return PaperRow(
        checkpoint=student,
        model=model,
        scale=scale,
        benchmarks=tuple(names),
        recovery=recovery(data, student, teacher),
        chance_normalized_recovery=normalized,
        paper_recovery=None if model is None else theirs,
        paper_chance_normalized_recovery=None if model is None else paper_normalized,
        scores={} if model is None else {n: (students[n] / 100, teachers[n] / 100) for n in names},
        citation=f"{CITATIONS['linearizing_2025']}, Table 5",
    )


def _cells(pool: Pool, checkpoints: set[int]) -> dict[str, list[int]]:
    """Benchmark name in the paper → indices of our cells, if all of them have these checkpoints."""
    found = {}
    for name, ours in BENCHMARKS.items():
        cells = [i for i, cell in enumerate(pool.cells) if cell.benchmark.name in ours]
        common = [i for i in cells if checkpoints <= set(pool.cells[i].present)]
        if common and {pool.cells[i].key for i in common} == {pool.cells[i].key for i in cells}:
            found[name] = common
    return found


def _data(pool: Pool, shared: dict[str, list[int]], checkpoints: Sequence[int]) -> BootstrapSample:
    cells = [i for members in shared.values() for i in members]
    data = pool.of(pool.scope("published", cells), checkpoints)
    assert data is not None  # `shared` has only cells with scores
    return data


def _chance(pool: Pool, cells: Sequence[int]) -> float | None:
    """Mean chance level of a benchmark over its cells; None if unknown."""
    levels = [pool.cells[i].chance for i in cells]
    known = [float(level.mean()) for level in levels if level is not None]
    return sum(known) / len(known) if len(known) == len(levels) else None


def paper_orders(pool: Pool, rows: Sequence[PaperRow]) -> list[PaperOrder]:
    """One order per teacher and scale that has three mixers or more of one recipe."""
    groups: dict[tuple[int | None, str], list[PaperRow]] = {}
    for row in rows:
        groups.setdefault((pool.tensor.checkpoints[row.checkpoint].teacher, row.scale), []).append(row)
    found = []
    for group in groups.values():
        chosen = _one_per_mixer(pool, group)
        if len(chosen) > 2:
            found.append(_order(pool, chosen))
    return found


def _one_per_mixer(pool: Pool, rows: Sequence[PaperRow]) -> list[PaperRow]:
    """Per mixer, the lowest seed of the students with all benchmarks, of the recipe with most mixers."""
    most = max(len(row.benchmarks) for row in rows)
    whole = [row for row in rows if len(row.benchmarks) == most and row.model is not None]
    lineages = {row.checkpoint: lineage_of(pool.tensor.checkpoints[row.checkpoint]) for row in whole}
    recipes = Counter(recipe for _, recipe in {(r.model, lineages[r.checkpoint].recipe) for r in whole})
    if not recipes:
        return []
    recipe = max(recipes, key=lambda name: recipes[name])
    mine = [row for row in whole if lineages[row.checkpoint].recipe == recipe]
    chosen: dict[str | None, PaperRow] = {}
    for row in sorted(mine, key=lambda row: lineages[row.checkpoint].seed or 0):
        chosen.setdefault(row.model, row)
    return sorted(chosen.values(), key=lambda row: -(row.recovery.point or 0.0))


def _order(pool: Pool, chosen: Sequence[PaperRow]) -> PaperOrder:
    checkpoints = [row.checkpoint for row in chosen]
    theirs = [row.paper_recovery or 0.0 for row in chosen]
    names = set(chosen[0].benchmarks)
    teacher = pool.tensor.checkpoints[checkpoints[0]].teacher
    assert teacher is not None  # a paper row is a student's
    everyone = [*checkpoints, teacher]
    shared = {name: cells for name, cells in _cells(pool, set(everyone)).items() if name in names}
    data = _data(pool, shared, everyone)
    levels = [data.level(checkpoint) for checkpoint in checkpoints]
    agreement = rank_agreement(levels, theirs)
    spread = pool.recipes.spread(data, teacher)
    proven = proven_pairs(data, pool.recipes, checkpoints)
    tau = agreement.tau
    return PaperOrder(
        checkpoints=tuple(checkpoints),
        recoveries=tuple(row.recovery.point or 0.0 for row in chosen),
        paper_recoveries=tuple(theirs),
        tau=tau,
        interval=None if tau is None else _tau_interval(data, checkpoints, theirs, tau, spread),
        inversions=tuple((checkpoints[i], checkpoints[j]) for i, j in agreement.inversions),
        deviation=None if spread is None else sqrt(spread.variance) / data.level(teacher),
        degrees=0 if spread is None else spread.degrees,
        ties=tuple(
            (a, b) for a, b in combinations(checkpoints, 2) if (a, b) not in proven and (b, a) not in proven
        ),
    )


def _tau_interval(
    data: BootstrapSample,
    checkpoints: Sequence[int],
    theirs: Sequence[float],
    tau: float,
    spread: RunSpread | None,
) -> Interval:
    """Percentile interval of τ-b with the fixed order `theirs` over documents and training runs."""
    levels = [data.mean({checkpoint: 1.0}) for checkpoint in checkpoints]
    method = "bootstrap over documents"
    if spread is not None:
        method += " and training runs"
        levels = [
            level.with_noise(spread.variance, spread.degrees, data.rng("runs", checkpoint))
            for level, checkpoint in zip(levels, checkpoints, strict=True)
        ]
    pairs = list(combinations(range(len(checkpoints)), 2))
    signs = np.stack([np.sign(levels[i].draws - levels[j].draws) for i, j in pairs])
    fixed = np.array([np.sign(theirs[i] - theirs[j]) for i, j in pairs])
    scale = np.sqrt((signs != 0).sum(axis=0) * (fixed != 0).sum())
    taus = (signs * fixed[:, None]).sum(axis=0) / np.maximum(scale, 1)
    low, high = np.quantile(taus, [0.025, 0.975])
    return Interval(tau, min(float(low), tau), max(float(high), tau), method)


def order_sentences(report: Report, order: PaperOrder) -> list[str]:
    """Describe how the order of the mixers agrees with the paper's, and which differences here are ties."""
    label = {checkpoint: report.checkpoints[checkpoint].label for checkpoint in order.checkpoints}
    count = len(order.checkpoints)
    pairs = count * (count - 1) // 2
    here = ", ".join(
        f"{label[s]} {formatting.percent(recovery)}"
        for s, recovery in zip(order.checkpoints, order.recoveries, strict=True)
    )
    first = f"Order of the {count} mixers here: {here}. "
    if order.tau is not None:
        first += f"Kendall τ with the paper's order is {formatting.plain(order.tau, 2)}"
        if order.interval is not None:
            over = order.interval.method.removeprefix("bootstrap ")
            first += f" (95 % interval {formatting.span(order.interval, 1, 2)} {over})"
        first += f": {len(order.inversions)} of {pairs} pairs are reversed"
        first += f" ({_pairs(label, order.inversions, ' above ')})." if order.inversions else "."
    sentences = [first]
    if order.deviation is None:
        tie = "Over documents alone (one run per recipe), these are not proven different: "
    else:
        tie = (
            f"Training runs that differ only in seed have a standard deviation of "
            f"{100 * order.deviation:.2f} points of this recovery ({order.degrees:g} degrees of freedom); "
            "over documents and runs, these are not proven different: "
        )
    sentences.append(tie + (f"{_pairs(label, order.ties, ' and ')}." if order.ties else "none."))
    return sentences


def _pairs(label: dict[int, str], pairs: tuple[tuple[int, int], ...], joint: str) -> str:
    return "; ".join(f"{label[first]}{joint}{label[second]}" for first, second in pairs)
