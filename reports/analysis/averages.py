"""Average rows: recovery over all benchmarks and per category, with ranks that admit ties."""

from collections.abc import Sequence
from dataclasses import replace
from math import erfc, sqrt

import numpy as np

from evalsuite.reports.analysis.rows import AverageRow
from evalsuite.reports.analysis.scopes import Pool, Scope
from evalsuite.reports.lineage import lineage_of
from evalsuite.reports.recovery import centred_recovery, recovery, win_and_tie_rate
from evalsuite.reports.resampled import Estimate, Resampled
from evalsuite.reports.statistics.holm import holm


def average_rows(pool: Pool) -> list[AverageRow]:
    """Rows for every scope and subject of a protocol; students of one teacher are ranked per scope."""
    rows = []
    for scope in pool.scopes() if pool.data is not None else []:
        here = [row for i in range(len(pool.panel.subjects)) if (row := _row(pool, scope, i)) is not None]
        rows += _with_ranks(pool, scope, here)
    return rows


def difference_p(data: Resampled, first: int, second: int) -> float:
    """Two-sided p-value of a paired difference of averages, by its bootstrap standard deviation."""
    deviation = float(data.difference_draws(first, second).std())
    difference = data.difference(first, second)
    if deviation == 0:
        return 1.0 if difference == 0 else 0.0
    return erfc(abs(difference) / deviation / sqrt(2))


def _row(pool: Pool, scope: Scope, subject: int) -> AverageRow | None:
    teacher = pool.panel.subjects[subject].teacher
    who = [subject] if teacher is None else [subject, teacher]
    data = pool.of(scope, who)
    if data is None:
        return None
    wanted = [pool.cells[i] for i in scope.cells if teacher is None or teacher in pool.cells[i].present]
    answered = [cell for cell in wanted if subject in cell.present]
    row = AverageRow(
        subject=subject,
        scope=scope.name,
        protocol=scope.protocol,
        benchmarks=tuple(dict.fromkeys(cell.benchmark.name for cell in answered)),
        missing=tuple(dict.fromkeys(c.benchmark.name for c in wanted if subject not in c.present)),
        documents=data.documents,
        score=data.level_interval(subject),
        deficit=None,
        recovery=Estimate(None, "a teacher is compared with nobody"),
        centred=Estimate(None, "a teacher is compared with nobody"),
        win_and_tie=None,
    )
    if teacher is None:
        return row
    centred = Estimate(None, "the chance level of a benchmark is not known")
    if all(cell.chance is not None for cell in answered):
        centred = centred_recovery(data, subject, teacher, pool.chance)
    return replace(
        row,
        deficit=data.difference_interval(teacher, subject),
        recovery=recovery(data, subject, teacher),
        centred=centred,
        win_and_tie=win_and_tie_rate(data, subject, teacher),
    )


def _with_ranks(pool: Pool, scope: Scope, rows: Sequence[AverageRow]) -> list[AverageRow]:
    """Rank the finished students of each teacher that answered the whole scope."""
    ranked = {row.subject: row for row in rows}
    teachers = [pool.panel.subjects[row.subject].teacher for row in rows]
    for teacher in dict.fromkeys(index for index in teachers if index is not None):
        group = [
            row
            for row in rows
            if pool.panel.subjects[row.subject].teacher == teacher
            and not row.missing
            and row.recovery.interval is not None
            and lineage_of(pool.panel.subjects[row.subject].plan).complete
        ]
        members = [row.subject for row in group]
        data = pool.of(scope, [*members, teacher])
        if data is None:
            continue
        pairs = [(a, b) for position, a in enumerate(members) for b in members[position + 1 :]]
        adjusted = holm([difference_p(data, a, b) for a, b in pairs])
        better: dict[int, set[int]] = {subject: set() for subject in members}
        for (a, b), p in zip(pairs, adjusted, strict=True):
            if p <= 0.05:
                winner, loser = (a, b) if data.difference(a, b) > 0 else (b, a)
                better[loser].add(winner)
        levels = {subject: round(data.level(subject), 12) for subject in members}
        for subject in members:
            worse = sum(subject in winners for winners in better.values())
            ranked[subject] = replace(
                ranked[subject],
                rank=1 + sum(level > levels[subject] for level in levels.values()),
                rank_low=1 + len(better[subject]),
                rank_high=len(members) - worse,
            )
    return [ranked[row.subject] for row in rows]


def order(rows: Sequence[AverageRow]) -> list[AverageRow]:
    """Best recovery first; those without one last, in their own order."""
    points = np.array([-np.inf if row.recovery.point is None else row.recovery.point for row in rows])
    return [rows[i] for i in np.argsort(-points, kind="stable")]
