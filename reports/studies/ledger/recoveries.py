"""Recovery by kind and model from printed figures, with bounds over documents where these are known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt

from evalsuite.foundation import DataError
from evalsuite.reports.statistics.intervals import Interval, normal_quantile, wilson
from evalsuite.reports.studies.ledger.figures import KINDS, Figure, Kind

LEVEL = 0.975
"""Of the interval of each of two scores, so that both hold at 95 % however their documents depend."""


@dataclass(frozen=True, slots=True)
class Row:
    """One student of the ledger."""

    figures: tuple[Figure, ...]
    recoveries: Mapping[Kind, Interval]
    """A student's macro average ÷ its teacher's, in percent; infinite ends where bounds are unknown."""

    @property
    def sources(self) -> str:
        """Of its figures, each once."""
        return "; ".join(dict.fromkeys(figure.source for figure in self.figures))

    def gap(self, kind: Kind) -> float | None:
        """Recovery by log-likelihood − recovery by another kind, in points; None where one is unknown."""
        if not {"loglikelihood", kind} <= set(self.recoveries):
            return None
        return self.recoveries["loglikelihood"].point - self.recoveries[kind].point


def ledger_rows(figures: Sequence[Figure]) -> list[Row]:
    """One row for each student of a teacher, by size.

    Raises:
        DataError: a figure twice, a part of an average that is not there, or several figures of a kind of
            which one states no scores, so that there is no macro average.
    """
    models: dict[tuple[str, str], list[Figure]] = {}
    for figure in figures:
        models.setdefault((figure.teacher, figure.model), []).append(figure)
    rows = [Row(tuple(own), _recoveries(own)) for own in models.values()]
    return sorted(rows, key=lambda row: row.figures[0].parameters)


def _recoveries(figures: Sequence[Figure]) -> dict[Kind, Interval]:
    found: dict[Kind, Interval] = {}
    for kind in KINDS:
        own = [figure for figure in figures if figure.kind == kind]
        counted = [figure for figure in own if not figure.part_of]
        names = [figure.benchmark for figure in own]
        for figure in own:
            place = f"{figure.model} of {figure.teacher}, {figure.benchmark} ({kind})"
            if names.count(figure.benchmark) > 1:
                raise DataError(f"{place}: two figures; keep one")
            if figure.part_of and figure.part_of not in (each.benchmark for each in counted):
                raise DataError(f"{place}: 'part_of' = {figure.part_of!r}, of which there is no figure")
            if figure.recovery is not None and len(counted) > 1:
                raise DataError(f"{place}: a recovery without scores has no macro average with others")
        if counted and (stated := counted[0].recovery) is not None:
            found[kind] = Interval(stated, -inf, inf)
        elif counted:
            found[kind] = _ratio(counted)
    return found


def _ratio(figures: Sequence[Figure]) -> Interval:
    """Ratio of macro averages, between the lowest and the highest that the intervals of both allow."""
    student = _average([_interval(e.student_score or 0, e.student_error, e.documents) for e in figures])
    teacher = _average([_interval(e.teacher_score or 0, e.teacher_error, e.documents) for e in figures])
    point = 100 * student.point / teacher.point
    if student.high == inf or teacher.high == inf:
        return Interval(point, -inf, inf)
    high = 100 * student.high / teacher.low if teacher.low > 0 else inf
    return Interval(point, 100 * student.low / teacher.high, high)


def _interval(score: float, error: float | None, documents: int | None) -> Interval:
    """Interval of one score in percent: by its standard error, else Wilson's, else without ends.

    Wilson's holds for means of scores between 0 and 1, too: none varies more than right or wrong does.
    """
    if error:
        half = normal_quantile(0.5 + LEVEL / 2) * error
        return Interval(score, score - half, score + half).clipped(0, 100)
    found = wilson(documents * score / 100, documents, LEVEL) if documents else None
    return Interval(score, -inf, inf) if found is None else found.scaled(100)


def _average(parts: Sequence[Interval]) -> Interval:
    """Interval of a mean of independent scores: half-widths add as squares (MOVER, Zou and Donner 2008)."""
    point = sum(part.point for part in parts) / len(parts)
    below = sqrt(sum((part.point - part.low) ** 2 for part in parts)) / len(parts)
    above = sqrt(sum((part.high - part.point) ** 2 for part in parts)) / len(parts)
    return Interval(point, point - below, point + above)
