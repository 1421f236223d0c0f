"""Gap rows: what is lost when a checkpoint must write, beyond what it loses when its answers are ranked."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from evalsuite.foundation import content_hash
from evalsuite.reports.analysis.averages import difference_p
from evalsuite.reports.analysis.rows import Agreement, AverageRow, GapRow, Inversion, PairRow
from evalsuite.reports.analysis.scopes import ALL, weights_of
from evalsuite.reports.panel import Cell, Panel
from evalsuite.reports.records import OUTCOMES, PROTOCOLS
from evalsuite.reports.resampled import Resampled
from evalsuite.reports.statistics.bootstrap import DRAWS, Stratum, collapse, percentile_interval
from evalsuite.reports.statistics.holm import holm
from evalsuite.reports.statistics.interval import Interval
from evalsuite.reports.statistics.kendall import rank_agreement

CLASSES = ("extraction_failed", "truncated", "looped")
METHOD = "paired bootstrap over documents asked under both protocols"


@dataclass(frozen=True, slots=True)
class Twin:
    """A benchmark's cells under both protocols, cut to the documents that both have."""

    ranked: Cell
    written: Cell
    in_ranked: np.ndarray
    """[D] positions of the common documents in `ranked`"""
    in_written: np.ndarray

    @property
    def documents(self) -> int:
        """Number of common documents."""
        return len(self.in_ranked)

    def scores(self, subject: int) -> np.ndarray:
        """[2, D] scores of a subject under log-likelihood and generation."""
        return np.array(
            [
                self.ranked.scores()[self.ranked.present.index(subject), self.in_ranked],
                self.written.scores()[self.written.present.index(subject), self.in_written],
            ]
        )

    def has_outcome(self, subject: int, outcome: str) -> np.ndarray:
        """[D] whether any seed's written answer ended so."""
        row = self.written.outcomes[self.written.present.index(subject)][:, self.in_written]
        return (row == OUTCOMES.index(outcome)).any(axis=0)

    def outcome_shares(self, subject: int) -> dict[str, float]:
        """Share of written answers (documents × seeds) per outcome."""
        row = self.written.outcomes[self.written.present.index(subject)][:, self.in_written]
        return {name: float((row == i).mean()) for i, name in enumerate(OUTCOMES)}


def twins_of(panel: Panel) -> list[Twin]:
    """Every benchmark (and context) that was asked under both protocols with two common documents or more."""
    found = []
    for ranked in panel.cells:
        for written in panel.cells:
            if (ranked.protocol, written.protocol) != ("loglikelihood", "generation"):
                continue
            if ranked.benchmark.name != written.benchmark.name or ranked.context != written.context:
                continue
            if ranked.is_perplexity or written.is_perplexity:
                continue
            _, a, b = np.intersect1d(
                ranked.documents, written.documents, assume_unique=True, return_indices=True
            )
            if len(a) > 1:
                found.append(Twin(ranked, written, a, b))
    return found


class GapPool:
    """All twins, resampled once; the columns are all subjects ranked, then all subjects written."""

    def __init__(self, panel: Panel, draws: int = DRAWS) -> None:
        """Pair the protocols and resample."""
        self.panel = panel
        self.twins = twins_of(panel)
        self.data: Resampled | None = None
        if self.twins:
            seed = int(content_hash(["gap", *(twin.ranked.key for twin in self.twins)]), 16)
            strata = [self._stratum(twin) for twin in self.twins]
            self.data = Resampled(strata, [1.0] * len(strata), np.random.default_rng(seed), draws=draws)

    def columns(self, subject: int) -> tuple[int, int]:
        """Columns of a subject under log-likelihood and generation."""
        return subject, subject + len(self.panel.subjects)

    def answered(self, subjects: list[int]) -> list[int]:
        """Twins that all of `subjects` answered under both protocols."""
        return [
            i
            for i, twin in enumerate(self.twins)
            if all(s in twin.ranked.present and s in twin.written.present for s in subjects)
        ]

    def of(self, twins: list[int]) -> Resampled:
        """The data of some twins, weighted as in every average."""
        assert self.data is not None
        return self.data.only(twins, weights_of([self.twins[i].ranked for i in twins]))

    def _stratum(self, twin: Twin) -> Stratum:
        subjects = len(self.panel.subjects)
        rows = np.full((2 * subjects, twin.documents), np.nan)
        variance = np.zeros(2 * subjects)
        for cell, at, offset in ((twin.ranked, twin.in_ranked, 0), (twin.written, twin.in_written, subjects)):
            columns = [offset + subject for subject in cell.present]
            rows[columns] = cell.scores()[:, at]
            if len(cell.seeds) > 1:
                variance[columns] = cell.seed_variance()
        return collapse(rows.T, variance)


def gap_rows(pool: GapPool) -> list[GapRow]:
    """For every student: a row per benchmark asked both ways, and one for their macro average."""
    rows = []
    for student, subject in enumerate(pool.panel.subjects):
        if subject.teacher is None:
            continue
        twins = pool.answered([student, subject.teacher])
        if not twins:
            continue
        rows.append(_row(pool, student, subject.teacher, twins, ALL, None))
        for i in twins:
            cell = pool.twins[i].ranked
            rows.append(_row(pool, student, subject.teacher, [i], cell.benchmark.name, cell.context))
    return rows


def gap_interval(
    data: Resampled, student: tuple[int, int], teacher: tuple[int, int], level: float = 0.95
) -> Interval:
    """The gap with its interval, as fractions."""
    interval = percentile_interval(
        data.gap(student, teacher), data.gap_draws(student, teacher), level, METHOD
    )
    assert interval is not None
    return interval


def _row(
    pool: GapPool, student: int, teacher: int, twins: list[int], name: str, context: int | None
) -> GapRow:
    data = pool.of(twins)
    s, t = pool.columns(student), pool.columns(teacher)
    ranked, written = (data.difference_interval(t[protocol], s[protocol]) for protocol in (0, 1))
    assert ranked is not None
    assert written is not None
    chosen = [pool.twins[i] for i in twins]
    weights = data.weights
    return GapRow(
        subject=student,
        benchmark=name,
        context=context,
        documents=data.documents,
        ranked={"teacher": data.level(t[0]), "student": data.level(s[0])},
        written={"teacher": data.level(t[1]), "student": data.level(s[1])},
        deficit_ranked=ranked,
        deficit_written=written,
        gap=gap_interval(data, s, t),
        right={"teacher": _right_table(chosen, teacher), "student": _right_table(chosen, student)},
        outcomes={
            who: _mean_shares(chosen, subject, weights)
            for who, subject in (("teacher", teacher), ("student", student))
        },
        explained=_explained(chosen, student, teacher, weights),
        chance=_chance(chosen, weights),
    )


def _chance(twins: list[Twin], weights: np.ndarray) -> float | None:
    levels = [twin.ranked.chance for twin in twins]
    known = [
        weight * float(level[twin.in_ranked].mean())
        for weight, level, twin in zip(weights, levels, twins, strict=True)
        if level is not None
    ]
    return sum(known) if len(known) == len(twins) else None


def _right_table(twins: list[Twin], subject: int) -> list[float]:
    """Documents right both ways, only when ranked, only when written, neither; seeds count as fractions."""
    table = np.zeros(4)
    for twin in twins:
        ranked, written = twin.scores(subject)
        table += [
            (ranked * written).sum(),
            (ranked * (1 - written)).sum(),
            ((1 - ranked) * written).sum(),
            ((1 - ranked) * (1 - written)).sum(),
        ]
    return [float(count) for count in table]


def _mean_shares(twins: list[Twin], subject: int, weights: np.ndarray) -> dict[str, float]:
    shares = [twin.outcome_shares(subject) for twin in twins]
    return {
        name: float(sum(w * share[name] for w, share in zip(weights, shares, strict=True)))
        for name in OUTCOMES
    }


def _explained(twins: list[Twin], student: int, teacher: int, weights: np.ndarray) -> dict[str, float | None]:
    """How far the gap falls when documents that ended badly in either model are dropped for both."""
    keep_all = [np.ones(twin.documents, dtype=bool) for twin in twins]
    whole = _plain_gap(twins, student, teacher, weights, keep_all)
    explained: dict[str, float | None] = {}
    bad_any = [np.zeros(twin.documents, dtype=bool) for twin in twins]
    for name in CLASSES:
        bad = [twin.has_outcome(student, name) | twin.has_outcome(teacher, name) for twin in twins]
        bad_any = [one | other for one, other in zip(bad_any, bad, strict=True)]
        rest = _plain_gap(twins, student, teacher, weights, [~each for each in bad])
        explained[name] = None if whole is None or rest is None else whole - rest
    rest = _plain_gap(twins, student, teacher, weights, [~each for each in bad_any])
    explained["any"] = None if whole is None or rest is None else whole - rest
    return explained


def _plain_gap(
    twins: list[Twin], student: int, teacher: int, weights: np.ndarray, keep: list[np.ndarray]
) -> float | None:
    total = 0.0
    for twin, weight, kept in zip(twins, weights, keep, strict=True):
        if not kept.any():
            return None
        deficits = (twin.scores(teacher) - twin.scores(student))[:, kept].mean(axis=1)
        total += weight * float(deficits[1] - deficits[0])
    return total


def agreement_of(pool: GapPool) -> Agreement | None:
    """Whether the protocols rank alike the students that answered everything asked both ways.

    Returns:
        None for fewer than two such students.
    """
    students = [i for i, subject in enumerate(pool.panel.subjects) if subject.teacher is not None]
    most = max((len(pool.answered([i])) for i in students), default=0)
    students = [i for i in students if most and len(pool.answered([i])) == most]
    if len(students) < 2:
        return None
    data = pool.of(pool.answered(students))
    columns = [[pool.columns(i)[protocol] for i in students] for protocol in (0, 1)]
    pairs = list(combinations(range(len(students)), 2))
    proven: list[set[tuple[int, int]]] = []
    for mine in columns:
        adjusted = holm([difference_p(data, mine[i], mine[j]) for i, j in pairs])
        proven.append({pair for pair, p in zip(pairs, adjusted, strict=True) if p <= 0.05})
    ranked, written = ([data.level(column) for column in mine] for mine in columns)
    return _agreement(students, ranked, written, proven[0] & proven[1])


def agreement_over_all(
    panel: Panel, averages: Sequence[AverageRow], pairs: Sequence[PairRow]
) -> Agreement | None:
    """Whether the protocols rank alike the students of a teacher by recovery over all that each of them asks.

    Args:
        panel: says whose students they are; the teacher with most of them counts.
        averages: of both protocols.
        pairs: likewise; their corrected p-values say what is proven.

    Returns:
        None for fewer than two students that have a rank under both.
    """
    rows = {(row.subject, row.protocol): row for row in averages if row.scope == ALL and row.rank is not None}
    students = [s for s, protocol in rows if protocol == "generation" and (s, "loglikelihood") in rows]
    teachers = Counter(panel.subjects[student].teacher for student in students)
    students = [s for s in students if panel.subjects[s].teacher == teachers.most_common(1)[0][0]]
    if len(students) < 2:
        return None
    ranked, written = ([rows[s, which].recovery.point or 0.0 for s in students] for which in PROTOCOLS)
    place = {subject: number for number, subject in enumerate(students)}
    sure = Counter(
        tuple(sorted((place[pair.first], place[pair.second])))
        for pair in pairs
        if pair.proven and pair.first in place and pair.second in place
    )
    return _agreement(students, ranked, written, {(a, b) for (a, b), count in sure.items() if count == 2})


def _agreement(
    students: Sequence[int],
    ranked: Sequence[float],
    written: Sequence[float],
    proven: Collection[tuple[int, int]],
) -> Agreement:
    """Args: `proven` holds pairs of places in `students`, the lower first, that differ either way."""
    agreement = rank_agreement(ranked, written)
    inversions = tuple(
        Inversion(
            ranked_above=students[i],
            written_above=students[j],
            difference_ranked=ranked[i] - ranked[j],
            difference_written=written[j] - written[i],
            proven=(min(i, j), max(i, j)) in proven,
        )
        for i, j in agreement.inversions
    )
    return Agreement(
        subjects=tuple(students), tau=agreement.tau, pairs=agreement.pairs, inversions=inversions
    )
