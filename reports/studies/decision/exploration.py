"""How far the contrasts depend on their definitions, which the protocol does not ask."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

import numpy as np

from evalsuite.reports.studies.decision.effects import Cell, Effect, Run, effect
from evalsuite.reports.studies.decision.protocol import Protocol

SAME_BY_CONSTRUCTION = ("lambada_completion",)
"""Completion tasks whose response is right exactly if the answer is the most likely continuation."""


class Unfound(NamedTuple):
    """Needles that the runs of a student do not generate, over the admitted cells, in percent.

    A way that corrects for guessing takes a student that fails to rank the right value first in one of four
    documents.
    """

    teacher: str
    student: str
    generated: float
    inside: float
    outside: float
    inside_unfound: float
    """The right value is the likeliest of those in the text, of the needles that are not generated."""
    outside_unfound: float
    """The same, among values that are not in the text."""


class Variant(NamedTuple):
    """A contrast of some students under another definition than the protocol's."""

    teacher: str
    contrast: str
    students: tuple[str, ...]
    family: str
    """Whose students these are; empty for a single student."""
    change: str
    """What differs from the protocol; empty if only the students do."""
    effect: Effect


class Order(NamedTuple):
    """What the first of two students keeps more than the second by one way of measuring, in points."""

    teacher: str
    students: tuple[str, str]
    of: str
    way: str
    effect: Effect


@dataclass(frozen=True)
class Explored:
    """Everything that was explored on one teacher."""

    unfound: tuple[Unfound, ...]
    variants: tuple[Variant, ...]
    orders: tuple[Order, ...]
    """Of the students that all teachers have."""


def explore(
    protocol: Protocol, name: str, admitted: Mapping[str, Sequence[Cell]], runs: Sequence[Run]
) -> Explored:
    """Return what was explored on one teacher.

    Args:
        protocol: what is compared.
        name: of the teacher in the protocol.
        admitted: cells by group.
        runs: of its students.
    """
    return Explored(
        tuple(_unfound(name, admitted["needles"])),
        tuple(_variants(protocol, name, admitted, runs)),
        tuple(_orders(protocol, name, admitted, runs)),
    )


def _unfound(name: str, cells: Sequence[Cell]) -> Iterator[Unfound]:
    for student in dict.fromkeys(run.student for cell in cells for run in cell.runs):
        scores = {
            way: np.concatenate(
                [of[way] for cell in cells for run, of in cell.runs.items() if run.student == student]
            )
            for way in ("generated", "inside", "outside")
        }
        left = scores["generated"] == 0
        whole = [100 * float(each.mean()) for each in scores.values()]
        rest = [
            100 * float(scores[way][left].mean()) if left.any() else np.nan for way in ("inside", "outside")
        ]
        yield Unfound(name, student, *whole, *rest)


def _variants(
    protocol: Protocol, name: str, admitted: Mapping[str, Sequence[Cell]], runs: Sequence[Run]
) -> Iterator[Variant]:
    students = protocol.teachers[name].students
    found = [student for student in students if sum(run.student == student for run in runs) > 1]
    families = {
        family: tuple(each for each in found if students[each] == family)
        for family in dict.fromkeys(students.values())
    }
    for contrast, question in protocol.contrasts.items():
        for family, chosen, cells, change in _changes(contrast, admitted[question.of], families, found):
            own = [run for run in runs if run.student in chosen]
            if own and cells:
                yield Variant(name, contrast, chosen, family, change, effect(cells, own, question.ways))


def _orders(
    protocol: Protocol, name: str, admitted: Mapping[str, Sequence[Cell]], runs: Sequence[Run]
) -> Iterator[Order]:
    common = set.intersection(*(set(teacher.students) for teacher in protocol.teachers.values()))
    found = [each for each in protocol.teachers[name].students if each in common]
    repeated = [each for each in found if sum(run.student == each for run in runs) > 1]
    for first, second in combinations(repeated, 2):
        own = [run for run in runs if run.student in (first, second)]
        for of, cells in admitted.items():
            for way in cells[0].teacher if cells else ():
                found_effect = effect(cells, own, (way,), {first: 1.0, second: -1.0})
                yield Order(name, (first, second), of, way, found_effect)


def _changes(
    contrast: str, cells: Sequence[Cell], families: Mapping[str, tuple[str, ...]], found: Sequence[str]
) -> Iterator[tuple[str, tuple[str, ...], Sequence[Cell], str]]:
    """Family, students, cells, and what differs from the protocol."""
    if contrast == "protocol":
        guessless = [replace(cell, chance={**cell.chance, "inside": 0.0}) for cell in cells]
        for family, chosen in families.items():
            yield family, chosen, guessless, "no correction for guessing"
    if contrast == "answers":
        apart = [cell for cell in cells if cell.name not in SAME_BY_CONSTRUCTION]
        for family, chosen in families.items():
            yield family, chosen, apart, f"without {', '.join(SAME_BY_CONSTRUCTION)}"
    for student in found:
        yield "", (student,), cells, ""
