"""Whether the order of recipes by recovery is the same at two sizes of the teacher: Kendall's τ-b."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from evalsuite.reports.analysis.scopes import Pool
from evalsuite.reports.measures.scaling.families import curves_of, families_of
from evalsuite.reports.measures.scaling.fits import METHOD, recoveries_of
from evalsuite.reports.statistics.agreement import rank_agreement
from evalsuite.reports.statistics.contrasts import Contrast
from evalsuite.reports.statistics.intervals import Interval

MIN_RECIPES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeOrderRow:
    """Order of the recipes that have students of both of two teachers."""

    protocol: str
    scope: str
    """`informative`, or `all` where no benchmark is."""
    teachers: tuple[int, int]
    """The smaller one first."""
    sizes: tuple[float, float]
    """Their parameters."""
    students: tuple[tuple[int, int], ...]
    """Of each recipe its first run, of either teacher."""
    runs: tuple[int, ...]
    """Training runs of each recipe."""
    tau: Interval
    """Kendall's τ-b of the mean recoveries."""
    inversions: tuple[tuple[int, int], ...]
    """Pairs of recipes, by their place in `students`, of which the first leads with the smaller teacher, and
    the second with the larger one."""


def size_orders(pool: Pool, informative: Mapping[int, Sequence[str]]) -> list[SizeOrderRow]:
    """Compare the orders of three recipes or more for every two teachers.

    Args:
        pool: the cells of a protocol.
        informative: teacher → names of its informative benchmarks.
    """
    checkpoints = pool.tensor.checkpoints
    sizes: dict[int, float] = {}
    recipes: list[list[dict[int, int]]] = []
    for families in curves_of(families_of(pool.tensor)[0]):
        runs: list[dict[int, int]] = [{} for _ in families]
        for run, family in zip(runs, families, strict=True):
            for student, value in zip(family.checkpoints, family.values, strict=True):
                teacher = checkpoints[student].teacher
                if family.quantity == "size" and teacher is not None:
                    run[teacher], sizes[teacher] = student, value
        recipes.append(runs)
    found = []
    for teachers in combinations(sorted(sizes, key=sizes.__getitem__), 2):
        common = [runs for runs in recipes if all(teacher in runs[0] for teacher in teachers)]
        students = [[(run[teachers[0]], run[teachers[1]]) for run in runs] for runs in common]
        made = recoveries_of(pool, informative, students) if len(students) >= MIN_RECIPES else None
        if made is None:
            continue
        scope, recoveries = made
        small, large = ([recovery[place] for recovery in recoveries] for place in (0, 1))
        order = rank_agreement([each.point for each in small], [each.point for each in large])
        if order.tau is None:
            continue
        runs_of_all = tuple(map(len, students))
        method = METHOD if max(runs_of_all) == 1 else f"{METHOD}, and t over training runs"
        low, high = np.quantile(tau_draws(small, large), (0.025, 0.975))
        found.append(
            SizeOrderRow(
                protocol=pool.protocol,
                scope=scope,
                teachers=teachers,
                sizes=(sizes[teachers[0]], sizes[teachers[1]]),
                students=tuple(runs[0] for runs in students),
                runs=runs_of_all,
                tau=Interval(order.tau, min(float(low), order.tau), max(float(high), order.tau), method),
                inversions=order.inversions,
            )
        )
    return found


def tau_draws(first: Sequence[Contrast], second: Sequence[Contrast]) -> np.ndarray:
    """Kendall's τ-a of each draw of two score lists, which have no ties: [draws]."""
    pairs = list(combinations(range(len(first)), 2))
    total = sum(
        np.sign(first[i].draws - first[j].draws) * np.sign(second[i].draws - second[j].draws)
        for i, j in pairs
    )
    return np.asarray(total / len(pairs))
