"""Whether both protocols put the choices of a student in the same order."""

from dataclasses import dataclass
from itertools import combinations

from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports.statistics.agreement import rank_agreement
from evalsuite.reports.studies.training_choices.analysis.scores import StudyScores


@dataclass(frozen=True, slots=True)
class OrderAgreement:
    """How far two protocols agree in the order of a student's choices."""

    student: str
    choices: int
    tau: float | None
    """Kendall's τ-b of the mean scores, undecided differences among them; None if a protocol ties all."""
    pairs: int
    same: int
    """Pairs that both protocols decide, and in which both prefer the same choice."""
    opposite: tuple[tuple[str, str], ...]
    """Pairs that both protocols decide: (preferred by log-likelihood, preferred by generation)."""


def order_agreement(scores: StudyScores, student: str) -> OrderAgreement | None:
    """Compare both protocols' orders of all choices of one student, its base included.

    A protocol decides a pair of choices if the interval of their difference, over runs and documents,
    excludes 0. Intervals hold together at 95 % for all pairs under both protocols (Bonferroni).

    τ has no interval: it depends on the order of choices that differ by noise alone, and resampling would
    add the noise of runs and documents a second time, which draws it to 0.

    Returns:
        None with fewer than three choices that have finished runs, or without two runs of any arm.
    """
    planned = dict.fromkeys(run.arm for run in scores.runs if run.student == student)
    arms = [arm for arm in planned if scores.of(student, arm)]
    if len(arms) < 3:
        return None
    means = {
        protocol: [float(scores.weights @ scores.mean(protocol, scores.of(student, arm))) for arm in arms]
        for protocol in PROTOCOLS
    }
    pairs = list(combinations(arms, 2))
    level = 1 - 0.05 / (len(pairs) * len(PROTOCOLS))
    same, opposite = 0, []
    for pair in pairs:
        preferred = []
        for protocol in PROTOCOLS:
            weights = {(student, pair[0]): 1.0, (student, pair[1]): -1.0}
            if (found := scores.contrast(protocol, weights, level=level)) is None:
                return None
            if found.excludes_zero:
                preferred.append(pair[0] if found.point > 0 else pair[1])
        if len(preferred) == len(PROTOCOLS):
            if len(set(preferred)) == 1:
                same += 1
            else:
                opposite.append((preferred[0], preferred[1]))
    tau = rank_agreement(means["loglikelihood"], means["generation"]).tau
    return OrderAgreement(student, len(arms), tau, len(pairs), same, tuple(opposite))
