"""Pairwise comparison of checkpoints on their common documents."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample
from evalsuite.reports.analysis.replicates import Recipes
from evalsuite.reports.analysis.rows import ALPHA, PairRow
from evalsuite.reports.analysis.scopes import Pool
from evalsuite.reports.statistics.hypothesis_tests import holm
from evalsuite.reports.statistics.paired import paired_counts


def pair_rows(pool: Pool) -> list[PairRow]:
    """Compare every pair of checkpoints under a protocol, with Holm's correction over all pairs."""
    rows = []
    for first, second in combinations(range(len(pool.tensor.checkpoints)), 2):
        data = pool.of(pool.scope("pair", range(len(pool.cells))), [first, second])
        if data is None:
            continue
        contrast, method = pool.recipes.difference(data, first, second)
        counts = [
            paired_counts(each.stratum.values[:, first], each.stratum.values[:, second])
            for each in data.strata
        ]
        rows.append(
            PairRow(
                first=first,
                second=second,
                protocol=pool.protocol,
                documents=data.documents,
                difference=contrast.interval(method=method),
                p=contrast.p_value(),
                p_holm=1.0,
                wins=sum(each.wins for each in counts),
                losses=sum(each.losses for each in counts),
                mde=contrast.detectable(),
                are_replicates=pool.recipes.are_replicates(first, second),
            )
        )
    different = [row for row in rows if not row.are_replicates]
    adjusted = iter(holm([row.p for row in different]))
    return [row if row.are_replicates else replace(row, p_holm=next(adjusted)) for row in rows]


def proven_pairs(
    data: BootstrapSample, recipes: Recipes, checkpoints: Sequence[int], columns: Sequence[int] | None = None
) -> set[tuple[int, int]]:
    """Pairs (better, worse) of `checkpoints` that are proven different after Holm's correction over them.

    Runs of one recipe are not compared; between recipes the spread between runs is allowed for.

    Args:
        data: strata with the columns.
        recipes: tells which checkpoints are runs of one recipe.
        checkpoints: the checkpoints.
        columns: the column of each; default: its index.
    """
    column = dict(zip(checkpoints, checkpoints if columns is None else columns, strict=True))
    pairs = [pair for pair in combinations(checkpoints, 2) if not recipes.are_replicates(*pair)]
    contrasts = [recipes.difference(data, a, b, (column[a], column[b]))[0] for a, b in pairs]
    adjusted = holm([contrast.p_value() for contrast in contrasts])
    return {
        (a, b) if contrast.point > 0 else (b, a)
        for (a, b), contrast, p in zip(pairs, contrasts, adjusted, strict=True)
        if p <= ALPHA
    }
