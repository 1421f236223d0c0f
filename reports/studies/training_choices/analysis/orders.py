"""Whether an arm changes the order of students, such as a defect of published code that of mixers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.studies.training_choices.analysis.scores import StudyScores
from evalsuite.reports.studies.training_choices.design import BASE, Axis

Reading = Literal["all", "published"]
"""all: every student has the arm. published: only those whose published code has it; others have the base."""
OrderVerdict = Literal["kept", "reversed", "not decided"]


@dataclass(frozen=True, slots=True)
class PairOrder:
    """Two students with and without an arm, under one protocol; differences are first − second.

    `first` is the student that is ahead in the base.
    """

    axis: str
    arm: str
    reading: Reading
    protocol: str
    first: str
    second: str
    base: Interval
    changed: Interval
    """The difference with the arm."""
    shift: Interval
    """`changed` − `base`: what the arm does to the difference."""

    @property
    def verdict(self) -> OrderVerdict:
        """Whether the order is the same; decided only if neither difference has 0 in its interval."""
        if not (self.base.excludes_zero and self.changed.excludes_zero):
            return "not decided"
        return "kept" if self.changed.point * self.base.point > 0 else "reversed"


def pair_orders(scores: StudyScores, axes: Mapping[str, Axis], protocol: str) -> list[PairOrder]:
    """Return every pair of students under every arm and reading, in the order of the axes.

    The reading `published` is left out where it is that of all students. Pairs that an arm leaves alone, or
    that lack finished runs, are left out; `StudyScores.missing` names these.
    """
    return [
        found
        for name, axis in axes.items()
        for arm in axis.arms
        for reading, students in readings(scores, axis)
        for pair in combinations(scores.students, 2)
        if set(pair) & students and (found := _pair(scores, name, arm, reading, students, pair, protocol))
    ]


def readings(scores: StudyScores, axis: Axis) -> Iterator[tuple[Reading, frozenset[str]]]:
    """Yield the readings of an axis with the students that have its arms."""
    able = frozenset(scores.students) & frozenset(axis.students or scores.students)
    yield "all", able
    if axis.published_for is not None and able != frozenset(axis.published_for):
        yield "published", able & frozenset(axis.published_for)


def _pair(
    scores: StudyScores,
    axis: str,
    arm: str,
    reading: Reading,
    students: frozenset[str],
    pair: tuple[str, str],
    protocol: str,
) -> PairOrder | None:
    arms = {student: arm if student in students else BASE for student in pair}
    if not all(scores.of(student, each) for student in pair for each in {BASE, arms[student]}):
        return None
    levels = [float(scores.weights @ scores.mean(protocol, scores.of(each, BASE))) for each in pair]
    first, second = pair if levels[0] >= levels[1] else pair[::-1]
    base = {(first, BASE): 1.0, (second, BASE): -1.0}
    changed = {(first, arms[first]): 1.0, (second, arms[second]): -1.0}
    shift = {
        key: weight
        for key in {**base, **changed}
        if (weight := changed.get(key, 0.0) - base.get(key, 0.0)) != 0
    }
    made = [scores.contrast(protocol, weights) for weights in (base, changed, shift)]
    if any(each is None for each in made):
        return None
    return PairOrder(axis, arm, reading, protocol, first, second, *made)  # type: ignore[arg-type]
