"""How close each mixer is to the teacher by four measures, and what changes of the recipe do to them.

A measure's values come as intervals. Two students are told apart by an interval of their difference that
takes the two as independent; they share documents, so it is a little wide.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import hypot

import numpy as np

from evalsuite.reports import formatting
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.blocks import Block, Part, Text, Texts
from evalsuite.reports.figures.figure import Values
from evalsuite.reports.measures.ablations import ablations
from evalsuite.reports.measures.agreement import leading_agreement
from evalsuite.reports.measures.distances import distance_of
from evalsuite.reports.measures.papers import paper_comparison
from evalsuite.reports.report import Report
from evalsuite.reports.section import section
from evalsuite.reports.statistics.agreement import rank_agreement
from evalsuite.reports.statistics.intervals import Interval, normal_quantile

DRAWS = 2000
METHOD = "normal, taken as independent"


@dataclass(frozen=True, slots=True)
class ClosenessOrder:
    """Students in the order of one measure."""

    students: tuple[int, ...]
    """Closest first."""
    closest: tuple[int, ...]
    """Those that are not told apart from the first, itself included."""
    tau: Interval | None
    """Kendall's τ-b with the reference order over the students that it has; None for fewer than three."""
    common: int
    """Students that the reference order has."""


def difference(first: Interval, second: Interval) -> Interval:
    """Return first − second; half widths add up in squares, as for independent values."""
    point = first.point - second.point
    below = hypot(first.point - first.low, second.high - second.point)
    above = hypot(first.high - first.point, second.point - second.low)
    return Interval(point, point - below, point + above, METHOD)


def closeness_order(
    values: Mapping[int, Interval], reference: Mapping[int, float], *, higher_is_closer: bool
) -> ClosenessOrder:
    """Order students by a measure.

    Args:
        values: student → value, at least one.
        reference: student → a value that is greater where the reference order puts it first.
        higher_is_closer: False for a distance.
    """
    sign = 1.0 if higher_is_closer else -1.0
    students = sorted(values, key=lambda each: -sign * values[each].point)
    first = values[students[0]]
    closest = [students[0]]
    for student in students[1:]:
        apart = difference(first, values[student]).scaled(sign)
        closest += [student] if apart.low <= 0 else []
    common = [student for student in students if student in reference]
    return ClosenessOrder(tuple(students), tuple(closest), _tau(values, reference, common, sign), len(common))


def _tau(
    values: Mapping[int, Interval], reference: Mapping[int, float], common: list[int], sign: float
) -> Interval | None:
    """Kendall's τ-b with percentiles over normal draws of the values."""
    theirs = [reference[student] for student in common]
    point = rank_agreement([sign * values[each].point for each in common], theirs).tau if common else None
    if len(common) < 3 or point is None:
        return None
    levels = np.array([sign * values[each].point for each in common])
    spreads = np.array([values[each].width for each in common]) / (2 * normal_quantile(0.975))
    noise = np.random.default_rng(0).standard_normal((DRAWS, len(common)))
    taus = [rank_agreement(list(row), theirs).tau for row in levels + spreads * noise]
    low, high = np.quantile([each for each in taus if each is not None], (0.025, 0.975))
    return Interval(point, min(float(low), point), max(float(high), point), METHOD)


PROTOCOL = "loglikelihood"


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure of closeness."""

    title: str
    value: Callable[[Report, int], Interval | None]
    higher_is_closer: bool = True
    scale: float = 100.0
    digits: int = 1

    def text(self, interval: Interval | None, *, signed: bool = False) -> str:
        """The point and its interval."""
        if interval is None:
            return formatting.NOTHING
        number = formatting.signed if signed else formatting.plain
        span = formatting.span(interval, self.scale, self.digits)
        return f"{number(self.scale * interval.point, self.digits)} ({span})"


def _agreement(report: Report, student: int) -> Interval | None:
    row = leading_agreement(report, student, PROTOCOL)
    return None if row is None else row.recipe_agreement.interval or row.agreement.interval


def _retained(report: Report, student: int) -> Interval | None:
    row = leading_agreement(report, student, PROTOCOL)
    return None if row is None else row.recipe_retained.interval or row.retained.interval


def _capped(report: Report, student: int) -> Interval | None:
    row = report.leading_average(student, PROTOCOL)
    return None if row is None or row.missing else row.capped_recovery.interval


def _distance(report: Report, student: int) -> Interval | None:
    row = distance_of(report, student)
    return None if row is None or row.is_retrained else row.kl


MEASURES = (
    Measure("agreement %", _agreement),
    Measure("retained %", _retained),
    Measure("KL at the answers, nats", _distance, higher_is_closer=False, scale=1.0, digits=3),
    Measure("capped recovery %", _capped),
)


ABOUT = (
    "One finished student per mixer of one recipe, over the informative benchmarks under log-likelihood, "
    "each with its place."
)
CHANGES = (
    "What a change does: the variant minus the student without the changes that the end of its name adds, "
    "with 95 % intervals of independent values; agreement and retained contain the spread between "
    "training runs."
)


@section("closeness", "Which mixer is closest", order=26)
def closeness_section(report: Report) -> list[Block]:
    """One table of mixers per teacher, and one of changes; nothing with fewer than two mixers of a recipe."""
    found = {
        report.checkpoints[teacher].label: blocks
        for teacher in report.teachers
        if (blocks := _of_teacher(report, teacher))
    }
    if len(found) > 1:
        return [Part(title, blocks) for title, blocks in found.items()]
    return next(iter(found.values()), [])


def _of_teacher(report: Report, teacher: int) -> list[Block]:
    mixers = _mixers(report, teacher)
    values = {measure.title: _values(report, mixers, measure) for measure in MEASURES}
    # A mixer that is measured alone is not the closest of any.
    compared = [measure for measure in MEASURES if len(values[measure.title]) > 1]
    if not compared:
        return []
    paper = {
        row.checkpoint: row.paper_recovery
        for row in report.of(paper_comparison)
        if row.paper_recovery is not None and row.checkpoint in mixers
    }
    orders = {
        measure.title: closeness_order(
            values[measure.title], paper, higher_is_closer=measure.higher_is_closer
        )
        for measure in compared
    }
    leading = next(iter(orders.values())).students
    listed = [*leading, *(each for each in mixers if each not in leading)]
    rows = tuple(
        (_mixer(report, each), *(_cell(measure, orders, values, each) for measure in MEASURES))
        for each in listed
    )
    mixers_table = Values(("mixer", *(measure.title for measure in MEASURES)), rows)
    sentences = [_sentence(report, title, order) for title, order in orders.items()]
    blocks: list[Block] = [*map(Text, (ABOUT, *sentences)), Texts(mixers_table, "Closeness by mixer")]
    if changes := _changes(report, teacher):
        blocks += [Text(CHANGES), Texts(changes, "Closeness by change")]
    return blocks


def _mixers(report: Report, teacher: int) -> list[int]:
    """The lowest seed of every pure, finished student of the recipe with most mixers."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for student in report.students(teacher):
        lineage = lineage_of(report.checkpoints[student])
        if (
            lineage.recipe is None
            or lineage.main_mixer is None
            or not lineage.is_plain
            or not lineage.complete
        ):
            continue
        own = found.setdefault(lineage.recipe, {})
        entry = (lineage.seed or 0, student)
        own[lineage.main_mixer] = min(entry, own.get(lineage.main_mixer, entry))
    if not found:
        return []
    return [student for _, student in max(found.values(), key=len).values()]


def _values(report: Report, students: Sequence[int], measure: Measure) -> dict[int, Interval]:
    pairs = ((each, measure.value(report, each)) for each in students)
    return {student: value for student, value in pairs if value is not None}


def _mixer(report: Report, student: int) -> str:
    lineage = lineage_of(report.checkpoints[student])
    mixer = lineage.main_mixer or ""
    return lineage.titles.get(mixer, mixer)


def _cell(
    measure: Measure,
    orders: Mapping[str, ClosenessOrder],
    values: Mapping[str, Mapping[int, Interval]],
    student: int,
) -> str:
    value = values[measure.title].get(student)
    if value is None:
        return formatting.NOTHING
    order = orders.get(measure.title)
    text = measure.text(value)
    return text if order is None else f"{text}, {order.students.index(student) + 1}."


def _sentence(report: Report, title: str, order: ClosenessOrder) -> str:
    first, *ties = (_mixer(report, each) for each in order.closest)
    name = title.removesuffix(" %").partition(",")[0]
    text = f"By {name}, {first} is closest"
    text += f", not told apart from {', '.join(ties)}" if ties else ""
    if order.tau is None:
        return f"{text}."
    tau = formatting.plain(order.tau.point, 2)
    return (
        f"{text}; Kendall τ with the paper's order is {tau} ({formatting.span(order.tau, 1, 2)}) over "
        f"{order.common} mixers."
    )


def _changes(report: Report, teacher: int) -> Values | None:
    """Every variant of a recipe − the student that differs only in it."""
    rows = []
    for ablation in report.of(ablations):
        for member in ablation.members:
            partner = member.partner
            if partner is None or report.checkpoints[member.checkpoint].teacher != teacher:
                continue
            cells = []
            for measure in MEASURES:
                mine, other = (measure.value(report, each) for each in (member.checkpoint, partner))
                change = None if mine is None or other is None else difference(mine, other)
                cells.append(measure.text(change, signed=True))
            rows.append((f"{member.name}, {_mixer(report, member.checkpoint)}", *cells))
    columns = ("change", *(measure.title.replace(" %", ", points") for measure in MEASURES))
    return Values(columns, tuple(rows)) if rows else None
