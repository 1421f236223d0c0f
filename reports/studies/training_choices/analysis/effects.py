"""Effects of training choices under both protocols, and the drop of the best student."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from evalsuite.foundation.taxonomy import PROTOCOLS
from evalsuite.reports.formatting import percent, span
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.studies.training_choices.analysis.scores import StudyScores
from evalsuite.reports.studies.training_choices.design import BASE, TEACHER, Axis

Verdict = Literal["agrees", "opposite", "not decided"]
POINTS: Mapping[str, float] = dict.fromkeys(PROTOCOLS, 1.0)
"""Units of drops in fractions of 1, see `drop`."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What an arm changes: mean score of its runs − that of the runs that it is compared with."""

    axis: str
    arm: str
    student: str | None
    """None: the mean over students."""
    loglikelihood: Interval
    generation: Interval

    def under(self, protocol: str) -> Interval:
        """Return the effect under one protocol."""
        return self.loglikelihood if protocol == "loglikelihood" else self.generation


def effects(scores: StudyScores, axes: Mapping[str, Axis]) -> list[Effect]:
    """Return the effect of every arm for each student, and their mean where there are several.

    Arms without finished runs, or without runs to be compared with, are left out; `StudyScores.missing` names
    them.
    """
    found = []
    for name, axis in axes.items():
        for arm in (each for each in axis.arms if each != axis.compared_with):
            students = [
                student
                for student in scores.students
                if (axis.students is None or student in axis.students)
                and scores.of(student, arm)
                and scores.of(student, axis.compared_with)
            ]
            groups: list[tuple[str | None, list[str]]] = [(each, [each]) for each in students]
            if len(students) > 1:
                groups.append((None, students))
            for student, group in groups:
                made = {protocol: _effect(scores, protocol, axis, arm, group) for protocol in PROTOCOLS}
                if all(made.values()):
                    found.append(Effect(name, arm, student, **made))  # type: ignore[arg-type]
    return found


def _effect(
    scores: StudyScores, protocol: str, axis: Axis, arm: str, students: Sequence[str]
) -> Interval | None:
    weights: dict[tuple[str, str], float] = {}
    for student in students:
        weights |= {(student, arm): 1 / len(students), (student, axis.compared_with): -1 / len(students)}
    return scores.contrast(protocol, weights)


def verdict(ours: Interval, printed: float) -> Verdict:
    """Compare the sign of an effect with that of a printed one.

    Returns:
        ``not decided`` if the interval contains 0, or the printed effect, in points, is 0 to a digit.
    """
    if not ours.excludes_zero or round(printed, 1) == 0:
        return "not decided"
    return "agrees" if ours.point * printed > 0 else "opposite"


@dataclass(frozen=True, slots=True)
class Drop:
    """Teacher − student on the same documents, in fractions of 1 or other units (see `drop`)."""

    student: str
    runs: int
    loglikelihood: Interval
    generation: Interval
    gap: Interval

    @property
    def finding(self) -> str:
        """Whether the finding of arXiv 2603.26556 (Table 1: 0.2 points against 20.8) holds, as a sentence."""
        gap = f"the gap is {percent(self.gap.point)} points ({span(self.gap)})"
        if self.gap.low > 0:
            return f"The paper's finding holds here: generation shows a larger drop; {gap}."
        if self.gap.high < 0:
            return f"The paper's finding does not hold here: log-likelihood shows the larger drop; {gap}."
        return f"The paper's finding is not decided here: {gap}."


def teacher_leads(scores: StudyScores) -> dict[str, float]:
    """Return the teacher's lead over chance under each protocol, as units of drops.

    A drop in these units is the lost share of what there was to lose: 1 at chance, whose level differs
    between the protocols. Leads count as known: intervals of such drops leave their error out.
    """
    return {protocol: scores.teacher_lead(protocol) for protocol in PROTOCOLS}


def drop(
    scores: StudyScores, student: str, arm: str = BASE, *, units: Mapping[str, float] = POINTS
) -> Drop | None:
    """Return the drop of a student's runs under both protocols, and the gap between them.

    Args:
        units: protocol → what its drop is divided by.

    Returns:
        None without a finished run, or without two runs of any arm.
    """
    runs = scores.of(student, arm)
    if not runs:
        return None
    lost = {p: (scores.values[p][TEACHER] - scores.mean(p, runs)) / units[p] for p in PROTOCOLS}
    made = {p: scores.interval(lost[p], {p: 1 / units[p]}, 1 / len(runs)) for p in PROTOCOLS}
    weights = {"loglikelihood": 1 / units["loglikelihood"], "generation": -1 / units["generation"]}
    gap = scores.interval(lost["generation"] - lost["loglikelihood"], weights, 1 / len(runs))
    if gap is None or any(each is None for each in made.values()):
        return None
    return Drop(student, len(runs), **made, gap=gap)  # type: ignore[arg-type]


def best_student(scores: StudyScores, hybrids: Sequence[str]) -> Drop | None:
    """Return the drop of the student whose base has the highest mean score over both protocols.

    Hybrids count if the study has no pure student.
    """
    pure = [student for student in scores.students if student not in hybrids]
    drops = [found for student in pure or scores.students if (found := drop(scores, student)) is not None]
    return min(drops, key=lambda each: each.loglikelihood.point + each.generation.point, default=None)
