"""What the student is faster at, and from where on: ratios to the teacher, crossovers, peaks and fits."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from evalsuite.reports.records.efficiency import EfficiencyRow, Spread
from evalsuite.reports.statistics.intervals import Interval

Quantity = Literal["prefill", "decode", "peak_throughput", "memory", "cache"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantityInfo:
    """A quantity in which student and teacher are compared."""

    title: str
    value: Callable[[EfficiencyRow], Spread | None]
    kind: Literal["request", "decode"]


def _exact(value: float | None) -> Spread | None:
    return None if not value else Spread(median=value, low=value, high=value, repeats=1)


QUANTITIES: dict[Quantity, QuantityInfo] = {
    "prefill": QuantityInfo(title="time to first token", value=lambda row: row.ttft_ms, kind="request"),
    "decode": QuantityInfo(title="decode step, one sequence", value=lambda row: row.step_ms, kind="request"),
    "peak_throughput": QuantityInfo(
        title="peak decode throughput",
        # Time per generated token, so that the spread of a step carries over.
        value=lambda row: row.step_ms and _scaled(row.step_ms, 1 / row.batch),
        kind="decode",
    ),
    "memory": QuantityInfo(
        title="peak memory, one sequence", value=lambda row: _exact(row.peak_bytes), kind="request"
    ),
    "cache": QuantityInfo(
        title="cache per sequence", value=lambda row: _exact(row.cache_bytes), kind="request"
    ),
}


def _scaled(spread: Spread, factor: float) -> Spread:
    return Spread(
        median=spread.median * factor,
        low=spread.low * factor,
        high=spread.high * factor,
        repeats=spread.repeats,
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """Where measurements are comparable: one engine, device and dtype, and one batch of prompts."""

    engine: str
    device: str
    dtype: str


def setting(row: EfficiencyRow) -> Setting:
    """The setting of a measurement."""
    return Setting(row.engine, row.device, row.dtype)


def settings(rows: Sequence[EfficiencyRow]) -> list[Setting]:
    """The settings, the one with most measurements first."""
    counted: dict[Setting, int] = {}
    for row in rows:
        counted[setting(row)] = counted.get(setting(row), 0) + 1
    return sorted(counted, key=lambda each: -counted[each])


def by_context(rows: Sequence[EfficiencyRow], weights_id: str, quantity: Quantity) -> dict[int, Spread]:
    """A model's values by context: single requests, or the best batch of a decode sweep.

    `rows` are of one setting.
    """
    info = QUANTITIES[quantity]
    found: dict[int, Spread] = {}
    for row in rows:
        if row.weights_id != weights_id or row.kind != info.kind or row.status != "ok":
            continue
        value = info.value(row)
        if value is None or (info.kind == "request" and row.batch != 1):
            continue
        best = found.get(row.context)
        if best is None or value.median < best.median:
            found[row.context] = value
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Ratio:
    """Teacher's cost ÷ student's cost at one context: above 1 the student is better."""

    context: int
    point: float
    low: float
    """From the teacher's smallest and the student's largest measurement."""
    high: float


def ratios(rows: Sequence[EfficiencyRow], student: str, teacher: str, quantity: Quantity) -> list[Ratio]:
    """How much better a student is than its teacher, at every context that both have; rows of one setting."""
    mine, theirs = by_context(rows, student, quantity), by_context(rows, teacher, quantity)
    return [
        Ratio(
            context,
            theirs[context].median / own.median,
            theirs[context].low / own.high,
            theirs[context].high / max(own.low, 1e-12),
        )
        for context, own in mine.items()
        if context in theirs
    ]


TYPICAL_CONTEXT = 32768
"""Context of a single number per student, where it is measured; else the longest one."""


def typical_ratio(
    rows: Sequence[EfficiencyRow], student: str, teacher: str, quantity: Quantity
) -> Interval | None:
    """The ratio at `TYPICAL_CONTEXT` or at the longest context, in the setting with most measurements."""
    for where in settings(rows):
        found = ratios([row for row in rows if setting(row) == where], student, teacher, quantity)
        if found:
            ratio = next((each for each in found if each.context == TYPICAL_CONTEXT), found[-1])
            return Interval(ratio.point, ratio.low, ratio.high, "range of repeats")
    return None


@dataclass(frozen=True, slots=True)
class Crossover:
    """From which context a student is better than its teacher, up to the longest measured one.

    A context of 0 means better at every measured context; infinity, at none of the longest ones.
    """

    quantity: Quantity
    context: float
    low: float
    high: float
    shortest: int
    longest: int

    @property
    def text(self) -> str:
        """``from 3,100 (2,900 to 3,400)``, or ``everywhere`` or ``nowhere`` of the measured contexts."""
        if self.context == 0:
            return "everywhere"
        if math.isinf(self.context):
            return "nowhere"
        if self.low == self.high:
            return f"from {self.context:,.0f}"
        high = "beyond" if math.isinf(self.high) else f"{self.high:,.0f}"
        low = f"below {self.shortest:,}" if self.low == 0 else f"{self.low:,.0f}"
        return f"from {self.context:,.0f} ({low} to {high})"


def crossover(found: Sequence[Ratio], quantity: Quantity) -> Crossover | None:
    """The context from which the ratio stays above 1, by log-log interpolation between measured contexts.

    The ends of its interval are the crossings of the ratios' upper and lower ends. None without two contexts.
    """
    if len(found) < 2:
        return None
    contexts = [each.context for each in found]
    return Crossover(
        quantity,
        _crossing(contexts, [each.point for each in found]),
        _crossing(contexts, [each.high for each in found]),
        _crossing(contexts, [each.low for each in found]),
        contexts[0],
        contexts[-1],
    )


def _crossing(contexts: Sequence[int], values: Sequence[float]) -> float:
    """Where values rise above 1 for good; 0 if they are above from the first, infinity if not at the last."""
    below = [number for number, value in enumerate(values) if value <= 1]
    if not below:
        return 0.0
    last = below[-1]
    if last == len(values) - 1:
        return math.inf
    x0, x1 = math.log(contexts[last]), math.log(contexts[last + 1])
    y0, y1 = math.log(values[last]), math.log(values[last + 1])
    return math.exp(x0 - y0 * (x1 - x0) / (y1 - y0))


def growth_exponent(found: dict[int, Spread], shortest: int = 0) -> float | None:
    """Slope of log value over log context by least squares: 1 is linear growth, 0 none.

    Args:
        found: values by context.
        shortest: contexts below are left out, where fixed costs hide the growth.
    """
    points = [(math.log(c), math.log(v.median)) for c, v in found.items() if c >= shortest]
    if len(points) < 2:
        return None
    x_mean = sum(x for x, _ in points) / len(points)
    y_mean = sum(y for _, y in points) / len(points)
    spread = sum((x - x_mean) ** 2 for x, _ in points)
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / spread


def families(rows: Sequence[EfficiencyRow]) -> list[list[EfficiencyRow]]:
    """Rows of each teacher with its students, in order of appearance."""
    found: dict[str, list[EfficiencyRow]] = {}
    measured = {row.weights_id for row in rows}
    for row in rows:
        head = row.teacher if row.teacher in measured else row.weights_id
        found.setdefault(str(head), []).append(row)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Pairing:
    """A student with its teacher in one setting."""

    setting: Setting
    student: EfficiencyRow
    """Any of its rows, for its label and identity."""
    teacher: EfficiencyRow


def pairings(rows: Sequence[EfficiencyRow], teachers: dict[str, str] | None = None) -> Iterator[Pairing]:
    """Students with measured teachers, per setting.

    Args:
        rows: all measurements.
        teachers: weights_id of a student → its teacher's, where known better than from the rows.
    """
    for where in settings(rows):
        first: dict[str, EfficiencyRow] = {}
        for row in rows:
            if setting(row) == where:
                first.setdefault(row.weights_id, row)
        for identifier, row in first.items():
            teacher = (teachers or {}).get(identifier, row.teacher)
            if teacher is not None and teacher in first:
                yield Pairing(where, row, first[teacher])


def synthetic_deviation(rows: Sequence[EfficiencyRow], weights_id: str) -> float | None:
    """Largest relative difference of a decode step between a synthetic cache and a real prefill.

    Rows of one setting; single sequences at the contexts that have both.
    """
    steps: dict[tuple[str, int], float] = {
        (row.kind, row.context): row.step_ms.median
        for row in rows
        if row.weights_id == weights_id and row.batch == 1 and row.status == "ok" and row.step_ms is not None
    }
    found = [
        abs(value / steps["request", context] - 1)
        for (kind, context), value in steps.items()
        if kind == "decode" and ("request", context) in steps
    ]
    return max(found, default=None)
