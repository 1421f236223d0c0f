"""Pairwise comparison of checkpoints on their common documents."""

from dataclasses import replace
from itertools import combinations

from evalsuite.reports.analysis.averages import difference_p
from evalsuite.reports.analysis.benchmark_rows import is_binary
from evalsuite.reports.analysis.rows import PairRow
from evalsuite.reports.analysis.scopes import Pool
from evalsuite.reports.statistics.hypothesis_tests import holm, mcnemar_exact, minimum_detectable_effect
from evalsuite.reports.statistics.paired import paired_counts


def pair_rows(pool: Pool) -> list[PairRow]:
    """Compare every pair of checkpoints under a protocol, with Holm's correction over all pairs."""
    if pool.data is None:
        return []
    everything = pool.scopes()[0]
    rows = []
    for first, second in combinations(range(len(pool.tensor.checkpoints)), 2):
        data = pool.of(everything, [first, second])
        if data is None:
            continue
        interval = data.difference_interval(first, second)
        assert interval is not None
        counts = [paired_counts(stratum, first, second) for stratum in data.strata]
        wins = sum(each.wins for each in counts)
        losses = sum(each.losses for each in counts)
        cells = [cell for cell in pool.cells if {first, second} <= set(cell.present)]
        rows.append(
            PairRow(
                first=first,
                second=second,
                protocol=pool.protocol,
                documents=data.documents,
                difference=interval,
                p=difference_p(data, first, second),
                p_holm=1.0,
                wins=wins,
                losses=losses,
                mcnemar=mcnemar_exact(wins, losses) if all(map(is_binary, cells)) else None,
                mde=minimum_detectable_effect(float(data.difference_draws(first, second).std())),
            )
        )
    adjusted = holm([row.p for row in rows])
    return [replace(row, p_holm=p) for row, p in zip(rows, adjusted, strict=True)]
