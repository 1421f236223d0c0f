"""Scaling charts: recovery by training tokens, by teacher size, or by another quantity."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial

from evalsuite.reports import formatting
from evalsuite.reports.analysis.lineage import lineage_of
from evalsuite.reports.figures.axes import exact_axis, log_axis
from evalsuite.reports.figures.figure import Figure
from evalsuite.reports.figures.plots import Axis, Curve, Point
from evalsuite.reports.figures.small_multiples import small_multiples
from evalsuite.reports.measure import MEASURES, Measure
from evalsuite.reports.measures.scaling.families import Family, LeftOut, Quantity, families_of
from evalsuite.reports.measures.scaling.fits import CrossoverRow, ScalingRow, scaling_rows
from evalsuite.reports.measures.scaling.ranks import SizeOrderRow, size_orders
from evalsuite.reports.report import Report, resampled
from evalsuite.reports.statistics.intervals import Interval
from evalsuite.reports.table import CSV, PAGE, Column, Table


def scaling_views(report: Report) -> list[Figure]:
    """Recovery by training tokens for checkpoints of one run, and by teacher size per mixer."""
    return [
        view
        for protocol in report.protocols
        for view in (*_token_scaling(report, protocol), *_size_scaling(report, protocol))
    ]


def _token_scaling(report: Report, protocol: str) -> list[Figure]:
    return recovery_charts(
        report,
        protocol,
        _families(report, protocol, "tokens"),
        lambda student: lineage_of(report.checkpoints[student]).tokens or 0,
        title="Recovery by training tokens",
        caption=(
            "Checkpoints of the last stage of one training run, or runs of one recipe with complete "
            "schedules; whiskers are 95 % intervals over documents."
        ),
        x_title="training tokens",
        x_label=lambda x: formatting.tokens(round(x)),
    )


def _size_scaling(report: Report, protocol: str) -> list[Figure]:
    return recovery_charts(
        report,
        protocol,
        _families(report, protocol, "size"),
        lambda student: _teacher_size(report, student),
        title="Recovery by teacher size",
        caption="One curve per mixer, recipe and seed; each student is compared with its own teacher.",
        x_title="teacher parameters",
        x_label=lambda x: formatting.parameters(round(x)),
    )


def families(report: Report) -> tuple[list[Family], list[LeftOut]]:
    """Students of one curve by training tokens or teacher size, two or more, and those that are left out."""
    return families_of(report.tensor)


def fitted(report: Report) -> tuple[list[ScalingRow], list[CrossoverRow]]:
    """Slope and plateau of curves of three or more points, and where the lines of two curves cross."""
    found = [
        scaling_rows(pool, report.informative_names(name)) for name, pool in report.of(resampled).items()
    ]
    return [row for rows, _ in found for row in rows], [row for _, rows in found for row in rows]


def orders(report: Report) -> list[SizeOrderRow]:
    """Agreement of the order of recipes between two sizes of the teacher."""
    pools = report.of(resampled).items()
    return [row for name, pool in pools for row in size_orders(pool, report.informative_names(name))]


def _families(report: Report, protocol: str, quantity: Quantity) -> dict[Hashable, list[int]]:
    there = set(comparable_students(report, protocol))
    return {
        at: [i for i in family.checkpoints if i in there]
        for at, family in enumerate(report.of(families)[0])
        if family.quantity == quantity
    }


def _teacher_size(report: Report, student: int) -> int:
    teacher = report.checkpoints[student].teacher
    return 0 if teacher is None else report.checkpoints[teacher].parameters or 0


def comparable_students(report: Report, protocol: str) -> list[int]:
    """Students whose recovery covers all benchmarks that recoveries are compared on."""
    rows = {student: report.leading_average(student, protocol) for student in report.students()}
    return [s for s, row in rows.items() if row and row.recovery.interval is not None and not row.missing]


def family_name(report: Report, student: int) -> str:
    """The mixers of a student, or its label if they are unknown."""
    entry = report.checkpoints[student]
    return lineage_of(entry).describe_mixers() or report.checkpoints[student].label


def recovery_charts(
    report: Report,
    protocol: str,
    families: Mapping[Hashable, Sequence[int]],
    x_of: Callable[[int], float],
    *,
    title: str,
    caption: str,
    x_title: str,
    x_label: Callable[[float], str],
    name_of: Callable[[int], str] | None = None,
    log: bool = True,
) -> list[Figure]:
    """Recovery against a quantity of each student; one curve per family with at least two values of it.

    Args:
        report: the students' report.
        protocol: protocol of the recovery.
        families: family key → students of one curve, from `comparable_students`.
        x_of: the quantity of a student.
        title: chart title; the protocol is appended.
        caption: one sentence.
        x_title: title of the x axis.
        x_label: text of an x tick.
        name_of: legend entry of a student's curve; default: its mixers.
        log: whether the x axis is logarithmic.
    """
    name_of = name_of or (lambda student: family_name(report, student))
    lines = {key: each for key, each in families.items() if len({x_of(student) for student in each}) > 1}
    names = {key: name_of(each[0]) for key, each in lines.items()}
    if len(set(names.values())) < len(names):
        names = {key: f"{names[key]} ({report.checkpoints[each[0]].label} …)" for key, each in lines.items()}
    series = [
        Curve(
            names[key],
            tuple(_point(report, student, x_of(student), protocol) for student in each),
            family_name(report, each[0]),
        )
        for key, each in lines.items()
    ]
    if not series:
        return []
    values = [point.x for curve in series for point in curve.points]
    ticks = (log_axis(values) if log else exact_axis(values)).ticks
    return small_multiples(
        series,
        Axis(x_title, ticks=[(tick, x_label(tick)) for tick in ticks], is_log=log),
        Axis("recovery, %"),
        title=f"{title}, {formatting.PROTOCOL_TITLES[protocol]}",
        caption=f"{caption} Over the informative benchmarks, or over all where none is.",
        reference=100.0,
    )


def _point(report: Report, student: int, x: float, protocol: str) -> Point:
    row = report.leading_average(student, protocol)
    assert row is not None
    assert row.recovery.interval is not None
    interval = row.recovery.interval.scaled(100)
    label = f"{report.checkpoints[student].label}: {formatting.estimate(row.recovery)} %"
    return Point(x, interval.point, interval.low, interval.high, label)


def _left_out(report: Report) -> list[str]:
    what = {"tokens": "training tokens", "size": "teacher size"}
    return [
        f"Left out of the curves by {what[each.quantity]}: "
        f"{', '.join(report.checkpoints[i].label for i in each.checkpoints)}: {each.why}."
        for each in report.of(families)[1]
    ]


def _amount(quantity: str, value: float) -> str:
    """Tokens, or parameters."""
    return formatting.tokens(round(value)) if quantity == "tokens" else formatting.parameters(round(value))


def _names(report: Report, students: Sequence[int]) -> list[str]:
    """The mixers of students of different recipes, and the label where others have the same mixers."""
    names = [family_name(report, student) for student in students]
    return [
        f"{name} ({report.checkpoints[student].label} …)" if names.count(name) > 1 else name
        for name, student in zip(names, students, strict=True)
    ]


def _crossovers(report: Report) -> list[str]:
    found = []
    for row in report.of(fitted)[1]:
        first, second = _names(report, (row.first[0], row.second[0]))
        amount = partial(_amount, row.quantity)
        point, span = amount(row.at.point), formatting.ends(row.at.low, row.at.high, amount)
        unit = "training tokens" if row.quantity == "tokens" else "parameters of the teacher"
        found.append(
            f"{first} overtakes {second} under {formatting.PROTOCOL_TITLES[row.protocol]} at {point} "
            f"({span}) {unit}."
        )
    return found


def _orders(report: Report) -> list[str]:
    found = []
    for row in report.of(orders):
        names = _names(report, [students[0] for students in row.students])
        small, large = (_amount("size", size) for size in row.sizes)
        swapped = ", ".join(f"{names[j]} overtakes {names[i]}" for i, j in row.inversions)
        found.append(
            f"Kendall τ between the orders of {len(names)} recipes with teachers of {small} and {large} "
            f"under {formatting.PROTOCOL_TITLES[row.protocol]} is {formatting.plain(row.tau.point, 2)} "
            f"({formatting.span(row.tau, 1, 2)})" + (f": {swapped}." if swapped else ".")
        )
    return found


def _gain(gain: Interval) -> str:
    return f"{formatting.signed(100 * gain.point)} ({formatting.span(gain)})"


def _by(row: ScalingRow) -> str:
    what = "training tokens" if row.quantity == "tokens" else "teacher size"
    return f"{what}, {formatting.PROTOCOL_TITLES[row.protocol]}"


SCALING: Table[ScalingRow] = Table(
    name="scaling",
    title="Scaling",
    rows=lambda report: report.of(fitted)[0],
    columns=(
        Column("name", "mixer", unit="text"),
        Column("by", unit="text", outputs=PAGE, show=lambda report, row: _by(row)),
        Column("quantity", unit="text", outputs=CSV),
        Column("runs"),
        Column("protocol", unit="text", outputs=CSV),
        Column("scope", unit="text", outputs=CSV),
        Column(
            "students",
            value=lambda report, row: " ".join(report.checkpoints[i].label for i in row.checkpoints),
            unit="text",
            outputs=CSV,
        ),
        Column(
            "range",
            unit="text",
            outputs=PAGE,
            show=lambda report, row: (
                f"{_amount(row.quantity, row.values[0])} to {_amount(row.quantity, row.values[-1])}"
            ),
        ),
        Column("first", value=lambda report, row: row.values[0], outputs=CSV),
        Column("last", value=lambda report, row: row.values[-1], outputs=CSV),
        Column("slope", "points per doubling", kind="interval", show=lambda report, row: _gain(row.slope)),
        Column("exponent", kind="interval", digits=2),
        Column("slope_misfit", outputs=CSV),
        Column("exponent_misfit", outputs=CSV),
        Column("last_gain", "last doubling", kind="interval", show=lambda report, row: _gain(row.last_gain)),
        Column(
            "plateau",
            show=lambda report, row: (
                formatting.NOTHING if row.plateau is None else f"from {_amount(row.quantity, row.plateau)}"
            ),
        ),
    ),
    order=50,
    intro=(
        "Slopes of recovery are per doubling; exponents are b of 1 − recovery = a · quantity^(−b). Intervals "
        "are 95 % over documents, and over training runs where a recipe has several. A plateau starts where "
        "no later gain is proven."
    ),
    notes=lambda report: [*_crossovers(report), *_orders(report), *_left_out(report)],
    figures=scaling_views,
)
MEASURES.add(
    "scaling",
    Measure(
        tables=(SCALING,),
        json={
            "families": lambda report: report.of(families)[0],
            "crossovers": lambda report: report.of(fitted)[1],
            "orders_by_size": lambda report: report.of(orders),
            "left_out_of_families": lambda report: report.of(families)[1],
        },
    ),
)
