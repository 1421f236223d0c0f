"""Gap rows: a student's drop under generation − its drop under log-likelihood, on the same documents."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from evalsuite.foundation import content_hash
from evalsuite.foundation.taxonomy import OUTCOMES, PROTOCOLS
from evalsuite.reports.analysis.averages import difference_p
from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample
from evalsuite.reports.analysis.result_tensor import Cell, ResultTensor
from evalsuite.reports.analysis.rows import Agreement, AverageRow, GapRow, Inversion, PairRow
from evalsuite.reports.analysis.scopes import ALL, weights_of
from evalsuite.reports.statistics.agreement import rank_agreement
from evalsuite.reports.statistics.bootstrap import DRAWS, Stratum, collapse, percentile_interval
from evalsuite.reports.statistics.hypothesis_tests import holm
from evalsuite.reports.statistics.intervals import Interval

CLASSES = ("extraction_failed", "truncated", "looped")
METHOD = "paired bootstrap over documents evaluated under both protocols"


@dataclass(frozen=True, slots=True)
class ProtocolPair:
    """The cells of a benchmark under both protocols, restricted to their common documents."""

    loglikelihood: Cell
    generation: Cell
    in_loglikelihood: np.ndarray
    """[D] positions of the common documents in `loglikelihood`"""
    in_generation: np.ndarray

    @property
    def documents(self) -> int:
        """Number of common documents."""
        return len(self.in_loglikelihood)

    def scores(self, checkpoint: int) -> np.ndarray:
        """[2, D] scores of a checkpoint under log-likelihood and generation."""
        return np.array(
            [
                self.loglikelihood.scores()[
                    self.loglikelihood.present.index(checkpoint), self.in_loglikelihood
                ],
                self.generation.scores()[self.generation.present.index(checkpoint), self.in_generation],
            ]
        )

    def has_outcome(self, checkpoint: int, outcome: str) -> np.ndarray:
        """[D] whether the generated response of any seed has this outcome."""
        row = self.generation.outcomes[self.generation.present.index(checkpoint)][:, self.in_generation]
        return (row == OUTCOMES.index(outcome)).any(axis=0)

    def outcome_shares(self, checkpoint: int) -> dict[str, float]:
        """Share of generated responses (documents × seeds) per outcome."""
        row = self.generation.outcomes[self.generation.present.index(checkpoint)][:, self.in_generation]
        return {name: float((row == i).mean()) for i, name in enumerate(OUTCOMES)}


def protocol_pairs_of(tensor: ResultTensor) -> list[ProtocolPair]:
    """Pair the cells of every benchmark and context with at least two common documents."""
    found = []
    for loglikelihood in tensor.cells:
        for generation in tensor.cells:
            if (loglikelihood.protocol, generation.protocol) != ("loglikelihood", "generation"):
                continue
            if (
                loglikelihood.benchmark.name != generation.benchmark.name
                or loglikelihood.context != generation.context
            ):
                continue
            if loglikelihood.is_perplexity or generation.is_perplexity:
                continue
            if not set(loglikelihood.present) & set(generation.present):
                continue
            _, a, b = np.intersect1d(
                loglikelihood.documents, generation.documents, assume_unique=True, return_indices=True
            )
            if len(a) > 1:
                found.append(ProtocolPair(loglikelihood, generation, a, b))
    return found


class GapPool:
    """All protocol pairs, resampled once.

    Columns are all checkpoints under log-likelihood, then all checkpoints under generation.
    """

    def __init__(self, tensor: ResultTensor, draws: int = DRAWS) -> None:
        """Pair the protocols and resample."""
        self.tensor = tensor
        self.protocol_pairs = protocol_pairs_of(tensor)
        self.data: BootstrapSample | None = None
        if self.protocol_pairs:
            seed = int(content_hash(["gap", *(pair.loglikelihood.key for pair in self.protocol_pairs)]), 16)
            strata = [self._stratum(pair) for pair in self.protocol_pairs]
            self.data = BootstrapSample(strata, [1.0] * len(strata), np.random.default_rng(seed), draws=draws)

    def columns(self, checkpoint: int) -> tuple[int, int]:
        """Columns of a checkpoint under log-likelihood and generation."""
        return checkpoint, checkpoint + len(self.tensor.checkpoints)

    def answered(self, checkpoints: list[int]) -> list[int]:
        """Indices of the pairs in which all of `checkpoints` have scores under both protocols."""
        return [
            i
            for i, pair in enumerate(self.protocol_pairs)
            if all(s in pair.loglikelihood.present and s in pair.generation.present for s in checkpoints)
        ]

    def of(self, protocol_pairs: list[int]) -> BootstrapSample:
        """Return the sample of some pairs, weighted as in every average."""
        assert self.data is not None
        return self.data.only(
            protocol_pairs, weights_of([self.protocol_pairs[i].loglikelihood for i in protocol_pairs])
        )

    def _stratum(self, pair: ProtocolPair) -> Stratum:
        checkpoints = len(self.tensor.checkpoints)
        rows = np.full((2 * checkpoints, pair.documents), np.nan)
        variance = np.zeros(2 * checkpoints)
        for cell, at, offset in (
            (pair.loglikelihood, pair.in_loglikelihood, 0),
            (pair.generation, pair.in_generation, checkpoints),
        ):
            columns = [offset + checkpoint for checkpoint in cell.present]
            rows[columns] = cell.scores()[:, at]
            if len(cell.seeds) > 1:
                variance[columns] = cell.seed_variance()
        return collapse(rows.T, variance)


def gap_rows(pool: GapPool) -> list[GapRow]:
    """For every student: one row per benchmark with both protocols, and one for their macro average."""
    rows = []
    for student, checkpoint in enumerate(pool.tensor.checkpoints):
        if checkpoint.teacher is None:
            continue
        protocol_pairs = pool.answered([student, checkpoint.teacher])
        if not protocol_pairs:
            continue
        rows.append(_row(pool, student, checkpoint.teacher, protocol_pairs, ALL, None))
        for i in protocol_pairs:
            cell = pool.protocol_pairs[i].loglikelihood
            rows.append(_row(pool, student, checkpoint.teacher, [i], cell.benchmark.name, cell.context))
    return rows


def gap_interval(
    data: BootstrapSample, student: tuple[int, int], teacher: tuple[int, int], level: float = 0.95
) -> Interval:
    """Compute the gap with its interval, as fractions."""
    interval = percentile_interval(
        data.gap(student, teacher), data.gap_draws(student, teacher), level, METHOD
    )
    assert interval is not None
    return interval


def _row(
    pool: GapPool, student: int, teacher: int, protocol_pairs: list[int], name: str, context: int | None
) -> GapRow:
    data = pool.of(protocol_pairs)
    s, t = pool.columns(student), pool.columns(teacher)
    loglikelihood, generation = (data.difference_interval(t[protocol], s[protocol]) for protocol in (0, 1))
    assert loglikelihood is not None
    assert generation is not None
    chosen = [pool.protocol_pairs[i] for i in protocol_pairs]
    weights = data.weights
    return GapRow(
        checkpoint=student,
        benchmark=name,
        context=context,
        documents=data.documents,
        loglikelihood={"teacher": data.level(t[0]), "student": data.level(s[0])},
        generation={"teacher": data.level(t[1]), "student": data.level(s[1])},
        drop_loglikelihood=loglikelihood,
        drop_generation=generation,
        gap=gap_interval(data, s, t),
        right={"teacher": _right_table(chosen, teacher), "student": _right_table(chosen, student)},
        outcomes={
            who: _mean_shares(chosen, checkpoint, weights)
            for who, checkpoint in (("teacher", teacher), ("student", student))
        },
        explained=_explained(chosen, student, teacher, weights),
        chance=_chance(chosen, weights),
    )


def _chance(protocol_pairs: list[ProtocolPair], weights: np.ndarray) -> float | None:
    levels = [pair.loglikelihood.chance for pair in protocol_pairs]
    known = [
        weight * float(level[pair.in_loglikelihood].mean())
        for weight, level, pair in zip(weights, levels, protocol_pairs, strict=True)
        if level is not None
    ]
    return sum(known) if len(known) == len(protocol_pairs) else None


def _right_table(protocol_pairs: list[ProtocolPair], checkpoint: int) -> list[float]:
    """Documents correct under both, log-likelihood only, generation only, neither; averaged over seeds."""
    table = np.zeros(4)
    for pair in protocol_pairs:
        loglikelihood, generation = pair.scores(checkpoint)
        table += [
            (loglikelihood * generation).sum(),
            (loglikelihood * (1 - generation)).sum(),
            ((1 - loglikelihood) * generation).sum(),
            ((1 - loglikelihood) * (1 - generation)).sum(),
        ]
    return [float(count) for count in table]


def _mean_shares(
    protocol_pairs: list[ProtocolPair], checkpoint: int, weights: np.ndarray
) -> dict[str, float]:
    shares = [pair.outcome_shares(checkpoint) for pair in protocol_pairs]
    return {
        name: float(sum(w * share[name] for w, share in zip(weights, shares, strict=True)))
        for name in OUTCOMES
    }


def _explained(
    protocol_pairs: list[ProtocolPair], student: int, teacher: int, weights: np.ndarray
) -> dict[str, float | None]:
    """Change of the gap if documents with a failure outcome in either model are removed for both."""
    keep_all = [np.ones(pair.documents, dtype=bool) for pair in protocol_pairs]
    full = _gap_over(protocol_pairs, student, teacher, weights, keep_all)
    explained: dict[str, float | None] = {}
    bad_any = [np.zeros(pair.documents, dtype=bool) for pair in protocol_pairs]
    for name in CLASSES:
        bad = [pair.has_outcome(student, name) | pair.has_outcome(teacher, name) for pair in protocol_pairs]
        bad_any = [one | other for one, other in zip(bad_any, bad, strict=True)]
        rest = _gap_over(protocol_pairs, student, teacher, weights, [~each for each in bad])
        explained[name] = None if full is None or rest is None else full - rest
    rest = _gap_over(protocol_pairs, student, teacher, weights, [~each for each in bad_any])
    explained["any"] = None if full is None or rest is None else full - rest
    return explained


def _gap_over(
    protocol_pairs: list[ProtocolPair],
    student: int,
    teacher: int,
    weights: np.ndarray,
    keep: list[np.ndarray],
) -> float | None:
    total = 0.0
    for pair, weight, selected in zip(protocol_pairs, weights, keep, strict=True):
        if not selected.any():
            return None
        drops = (pair.scores(teacher) - pair.scores(student))[:, selected].mean(axis=1)
        total += weight * float(drops[1] - drops[0])
    return total


def agreement_of(pool: GapPool) -> Agreement | None:
    """Agreement of the protocols on the students that have scores in every protocol pair.

    Returns:
        None for fewer than two such students.
    """
    students = [i for i, checkpoint in enumerate(pool.tensor.checkpoints) if checkpoint.teacher is not None]
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
    loglikelihood, generation = ([data.level(column) for column in mine] for mine in columns)
    return _agreement(students, loglikelihood, generation, proven[0] & proven[1])


def agreement_over_all(
    tensor: ResultTensor, averages: Sequence[AverageRow], pairs: Sequence[PairRow]
) -> Agreement | None:
    """Agreement of the protocols on the students of one teacher, by recovery over all benchmarks of each.

    Args:
        tensor: the results; the teacher with most ranked students is used.
        averages: average rows of both protocols.
        pairs: pair rows of both protocols; their corrected p-values decide what is proven.

    Returns:
        None for fewer than two students that have a rank under both protocols.
    """
    rows = {
        (row.checkpoint, row.protocol): row for row in averages if row.scope == ALL and row.rank is not None
    }
    students = [s for s, protocol in rows if protocol == "generation" and (s, "loglikelihood") in rows]
    teachers = Counter(tensor.checkpoints[student].teacher for student in students)
    students = [s for s in students if tensor.checkpoints[s].teacher == teachers.most_common(1)[0][0]]
    if len(students) < 2:
        return None
    loglikelihood, generation = (
        [rows[s, which].recovery.point or 0.0 for s in students] for which in PROTOCOLS
    )
    place = {checkpoint: number for number, checkpoint in enumerate(students)}
    sure = Counter(
        tuple(sorted((place[pair.first], place[pair.second])))
        for pair in pairs
        if pair.proven and pair.first in place and pair.second in place
    )
    return _agreement(
        students, loglikelihood, generation, {(a, b) for (a, b), count in sure.items() if count == 2}
    )


def _agreement(
    students: Sequence[int],
    loglikelihood: Sequence[float],
    generation: Sequence[float],
    proven: Collection[tuple[int, int]],
) -> Agreement:
    """Build the agreement; `proven` has pairs of positions in `students` (lower first) that surely differ."""
    agreement = rank_agreement(loglikelihood, generation)
    inversions = tuple(
        Inversion(
            loglikelihood_above=students[i],
            generation_above=students[j],
            difference_loglikelihood=loglikelihood[i] - loglikelihood[j],
            difference_generation=generation[j] - generation[i],
            proven=(min(i, j), max(i, j)) in proven,
        )
        for i, j in agreement.inversions
    )
    return Agreement(
        checkpoints=tuple(students), tau=agreement.tau, pairs=agreement.pairs, inversions=inversions
    )
