"""Gap rows: a student's drop under generation − its drop under log-likelihood, on the same documents."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from evalsuite.foundation import content_hash
from evalsuite.foundation.taxonomy import FAILURES, OUTCOMES, PROTOCOLS
from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample, ResampledStratum, Terms
from evalsuite.reports.analysis.cells import Cell
from evalsuite.reports.analysis.counting import holm_once
from evalsuite.reports.analysis.pairs import proven_pairs
from evalsuite.reports.analysis.replicates import Recipes
from evalsuite.reports.analysis.result_tensor import ResultTensor
from evalsuite.reports.analysis.rows import Agreement, AverageRow, GapRow, Inversion, PairRow
from evalsuite.reports.analysis.scopes import ALL, weights_of
from evalsuite.reports.statistics.agreement import rank_agreement
from evalsuite.reports.statistics.bootstrap import Stratum


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

    @property
    def clusters(self) -> np.ndarray | None:
        """[D] cluster codes of the common documents; None for independent documents."""
        if self.loglikelihood.clusters is None:
            return None
        codes = self.loglikelihood.clusters[self.in_loglikelihood]
        return np.asarray(np.unique(codes, return_inverse=True)[1])

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
                continue  # cells of different teachers
            _, a, b = np.intersect1d(
                loglikelihood.documents, generation.documents, assume_unique=True, return_indices=True
            )
            pair = ProtocolPair(loglikelihood, generation, a, b)
            if len(a) > 1 and (pair.clusters is None or pair.clusters.max() > 0):
                found.append(pair)
    return found


class GapPool:
    """All protocol pairs, resampled once.

    Columns are all checkpoints under log-likelihood, then all checkpoints under generation.
    """

    def __init__(self, tensor: ResultTensor) -> None:
        """Pair the protocols and resample."""
        self.tensor = tensor
        self.recipes = Recipes(tensor)
        self.protocol_pairs = protocol_pairs_of(tensor)
        self.strata = [ResampledStratum(self._stratum(pair)) for pair in self.protocol_pairs]
        self._samples: dict[tuple[int, ...], BootstrapSample] = {}

    def columns(self, checkpoint: int) -> tuple[int, int]:
        """Columns of a checkpoint under log-likelihood and generation."""
        return checkpoint, checkpoint + len(self.tensor.checkpoints)

    def gap(self, student: int, teacher: int) -> Terms:
        """The gap as a contrast: the drop under generation − the drop under log-likelihood."""
        (s, s_generation), (t, t_generation) = self.columns(student), self.columns(teacher)
        return {t_generation: 1.0, s_generation: -1.0, t: -1.0, s: 1.0}

    def answered(self, checkpoints: list[int]) -> list[int]:
        """Indices of the pairs in which all of `checkpoints` have scores under both protocols."""
        return [
            i
            for i, pair in enumerate(self.protocol_pairs)
            if all(s in pair.loglikelihood.present and s in pair.generation.present for s in checkpoints)
        ]

    def representatives(self, protocol_pairs: Sequence[int]) -> dict[int, int]:
        """Each pair whose requests under either protocol another of `protocol_pairs` has → that one."""
        found: dict[int, int] = {}
        for protocol in PROTOCOLS:
            left = [i for i in protocol_pairs if i not in found]
            cells = [getattr(self.protocol_pairs[i], protocol) for i in left]
            merged = self.tensor.counting.representatives(cells)
            found |= {left[i]: left[into] for i, into in merged.items()}
        return {i: found.get(into, into) for i, into in found.items()}

    def once(self, protocol_pairs: Sequence[int]) -> tuple[int, ...]:
        """Those of `protocol_pairs` that their average counts."""
        merged = self.representatives(protocol_pairs)
        return tuple(i for i in protocol_pairs if i not in merged)

    def of(self, protocol_pairs: Sequence[int]) -> BootstrapSample:
        """Return the sample of some pairs, each request once, weighted as in every average."""
        key = self.once(protocol_pairs)
        if key not in self._samples:
            weights = weights_of([self.protocol_pairs[i].loglikelihood for i in key])
            self._samples[key] = BootstrapSample([self.strata[i] for i in key], weights)
        return self._samples[key]

    def _stratum(self, pair: ProtocolPair) -> Stratum:
        checkpoints = len(self.tensor.checkpoints)
        rows = np.full((2 * checkpoints, pair.documents), np.nan)
        variance, degrees = np.zeros(2 * checkpoints), np.ones(2 * checkpoints)
        for cell, at, offset in (
            (pair.loglikelihood, pair.in_loglikelihood, 0),
            (pair.generation, pair.in_generation, checkpoints),
        ):
            columns = [offset + checkpoint for checkpoint in cell.present]
            rows[columns] = cell.scores()[:, at]
            variance[columns] = cell.seed_variance()
            degrees[columns] = max(1, len(cell.seeds) - 1)
        names = [checkpoint.weights_id for checkpoint in self.tensor.checkpoints]
        documents = pair.loglikelihood.documents[pair.in_loglikelihood].tolist()
        return Stratum(
            rows.T,
            tuple(f"{name} {protocol}" for protocol in PROTOCOLS for name in names),
            content_hash(["gap", pair.loglikelihood.key, documents]),
            pair.clusters,
            variance,
            degrees,
        )


def gap_rows(pool: GapPool) -> list[GapRow]:
    """For every student: one row per benchmark with both protocols, and one for their macro average."""
    averages: list[GapRow] = []
    rows: list[GapRow] = []
    merged: dict[int, int] = {}
    for student, checkpoint in enumerate(pool.tensor.checkpoints):
        if checkpoint.teacher is None:
            continue
        protocol_pairs = pool.answered([student, checkpoint.teacher])
        if not protocol_pairs:
            continue
        counted = list(pool.once(protocol_pairs))
        averages.append(_row(pool, student, checkpoint.teacher, counted, ALL, None))
        place = {i: len(rows) + at for at, i in enumerate(protocol_pairs)}
        merged |= {place[i]: place[into] for i, into in pool.representatives(protocol_pairs).items()}
        for i in protocol_pairs:
            cell = pool.protocol_pairs[i].loglikelihood
            rows.append(_row(pool, student, checkpoint.teacher, [i], cell.benchmark.name, cell.context))
    # The sort is stable: each student's average comes before its benchmarks.
    return sorted([*_corrected(averages, {}), *_corrected(rows, merged)], key=lambda row: row.checkpoint)


def _corrected(rows: Sequence[GapRow], merged: Mapping[int, int]) -> list[GapRow]:
    adjusted = holm_once([row.p for row in rows], merged)
    return [replace(row, p_holm=p) for row, p in zip(rows, adjusted, strict=True)]


def _row(
    pool: GapPool, student: int, teacher: int, protocol_pairs: list[int], name: str, context: int | None
) -> GapRow:
    data = pool.of(protocol_pairs)
    s, t = pool.columns(student), pool.columns(teacher)
    drops = [{t[protocol]: 1.0, s[protocol]: -1.0} for protocol in (0, 1)]
    loglikelihood, generation = (data.contrast(terms).interval(method=data.method(terms)) for terms in drops)
    terms = pool.gap(student, teacher)
    gap = data.contrast(terms)
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
        gap=gap.interval(method=data.method(terms)),
        p=gap.p_value(),
        p_holm=1.0,
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
    for name in FAILURES:
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
    loglikelihood, generation = ([data.level(column) for column in mine] for mine in columns)
    proven = [_proven(pool, data, students, protocol) for protocol in (0, 1)]
    return _agreement(students, loglikelihood, generation, proven[0] & proven[1])


def _proven(
    pool: GapPool, data: BootstrapSample, students: Sequence[int], protocol: int
) -> set[tuple[int, int]]:
    """Positions (lower first) of students that differ under a protocol, runs and multiplicity allowed for."""
    place = {student: position for position, student in enumerate(students)}
    found = proven_pairs(data, pool.recipes, students, [pool.columns(i)[protocol] for i in students])
    return {(min(place[a], place[b]), max(place[a], place[b])) for a, b in found}


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
