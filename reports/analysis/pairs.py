"""Pair rows: any two checkpoints, on the documents that both answered."""

from dataclasses import replace
from itertools import combinations

from evalsuite.reports.analysis.averages import difference_p
from evalsuite.reports.analysis.rows import PairRow
from evalsuite.reports.analysis.scopes import Pool
from evalsuite.reports.analysis.scores import is_binary
from evalsuite.reports.statistics.holm import holm
from evalsuite.reports.statistics.mcnemar import mcnemar_exact
from evalsuite.reports.statistics.paired import disagreements
from evalsuite.reports.statistics.power import minimum_detectable_effect


def pair_rows(pool: Pool) -> list[PairRow]:
    """Every pair of checkpoints under a protocol, with Holm's correction over all of them."""
    if pool.data is None:
        return []
    everything = pool.scopes()[0]
    rows = []
    for first, second in combinations(range(len(pool.panel.subjects)), 2):
        data = pool.of(everything, [first, second])
        if data is None:
            continue
        interval = data.difference_interval(first, second)
        assert interval is not None
        contests = [disagreements(stratum, first, second) for stratum in data.strata]
        wins = sum(contest.wins for contest in contests)
        losses = sum(contest.losses for contest in contests)
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
                detectable=minimum_detectable_effect(float(data.difference_draws(first, second).std())),
            )
        )
    adjusted = holm([row.p for row in rows])
    return [replace(row, p_holm=p) for row, p in zip(rows, adjusted, strict=True)]
