"""Number formats, shared by the page, the exports and the gate."""

from collections.abc import Callable, Sequence
from math import isinf

from evalsuite.foundation.taxonomy import PROTOCOL_TITLES as PROTOCOL_TITLES
from evalsuite.reports.analysis.bootstrap_sample import Estimate
from evalsuite.reports.analysis.rows import AverageRow
from evalsuite.reports.analysis.scopes import INFORMATIVE
from evalsuite.reports.report import Report
from evalsuite.reports.statistics.intervals import Interval

CATEGORY_TITLES = {
    "all": "All",
    "knowledge": "Knowledge",
    "common_sense": "Common sense",
    "reasoning": "Reasoning",
    "instruction_following": "Instruction following",
    "recall": "Recall",
    "language_modeling": "Language modeling",
    "other": "Other",
}

NOTHING = "–"
MINUS = "−"


def signed(value: float, digits: int = 1) -> str:
    """A number with a typographic sign: ``+1.2``, ``−0.3``, ``0.0``."""
    text = f"{abs(value):.{digits}f}"
    if float(text) == 0:
        return text
    return f"{'+' if value > 0 else MINUS}{text}"


def plain(value: float, digits: int = 1) -> str:
    """A number with a typographic minus where it is negative."""
    text = f"{abs(value):,.{digits}f}"
    return text if value >= 0 or not text.strip("0.") else f"{MINUS}{text}"


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction as a percentage without the % sign; a dash for None."""
    return NOTHING if value is None else plain(100 * value, digits)


def span(interval: Interval, scale: float = 100, digits: int = 1) -> str:
    """Both ends of an interval: ``92.8 to 95.6``, or ``at least 12.1, no upper bound``."""
    return ends(scale * interval.low, scale * interval.high, lambda end: plain(end, digits))


def ends(low: float, high: float, text: Callable[[float], str]) -> str:
    """Two ends of an interval, in words where one is infinite."""
    if isinf(low) and isinf(high):
        return "no bounds"
    if isinf(high):
        return f"at least {text(low)}, no upper bound"
    if isinf(low):
        return f"at most {text(high)}, no lower bound"
    return f"{text(low)} to {text(high)}"


def contrast(point: float, low: float, high: float) -> str:
    """A difference with its interval: ``+1.2 (−0.3 to +2.7)``."""
    return f"{signed(point)} ({ends(low, high, signed)})"


def bound(end: float) -> float | None:
    """An end of an interval in a file: None where there is no bound."""
    return None if isinf(end) else end


def estimate(value: Estimate, digits: int = 1) -> str:
    """``94.2 (92.8 to 95.6)`` in percent, or a dash."""
    if value.interval is None:
        return NOTHING
    return f"{percent(value.interval.point, digits)} ({span(value.interval, 100, digits)})"


def rank(row: AverageRow) -> str:
    """``1``, or ``1–3`` where the order of the three is not significant; empty without a rank."""
    if row.rank is None:
        return ""
    if row.rank_low == row.rank_high:
        return str(row.rank_low)
    return f"{row.rank_low}–{row.rank_high}"


def count(number: int) -> str:
    """An integer with thousands separators: ``33,412``."""
    return f"{number:,}"


def benchmarks(report: Report) -> str:
    """Number of benchmarks that have scores, `of` how many if others are planned."""
    scored, planned = len({row.benchmark for row in report.scores}), len(report.benchmarks)
    return str(planned) if scored == planned else f"{scored} of {planned}"


def some(names: Sequence[str], most: int = 4) -> str:
    """The names, joined by commas; of more than `most`, all but the first ones as their number."""
    if len(names) <= most:
        return ", ".join(names)
    shown = most - 1
    return f"{', '.join(names[:shown])} and {len(names) - shown} more"


def tokens(number: int) -> str:
    """``512``, ``2k``, ``128k`` for powers of two; ``30M``, ``1.5B`` for training budgets."""
    if number >= 10**9:
        return f"{number / 10**9:.3g}B"
    if number >= 10**6:
        return f"{number / 10**6:.3g}M"
    if number >= 1024 and number % 1024 == 0:
        return f"{number // 1024}k"
    if number >= 10**4:
        return f"{number / 10**3:.3g}k"
    return str(number)


def parameters(number: int | None) -> str:
    """``135M``, or nothing."""
    if not number:
        return ""
    return f"{number / 1e9:.2g}B" if number >= 1e9 else f"{number / 1e6:.3g}M"


def bytes_(number: float) -> str:
    """``1.5 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.3g} {unit}"
        number /= 1024
    return f"{number:.3g} GiB"


def best_student(report: Report) -> AverageRow | None:
    """The student with the highest informative recovery under log-likelihood, or under generation without it.

    Students proven to score above their teacher come last: their recovery measures what they learned.
    """
    for protocol in report.protocols:
        rows = [
            row
            for student in report.students()
            if (row := report.average(student, protocol, INFORMATIVE)) is not None and row.rank is not None
        ]
        if rows:
            return max(rows, key=lambda row: (not exceeds_teacher(row), row.recovery.point or 0.0))
    return None


def exceeds_teacher(row: AverageRow) -> bool:
    """Whether a student is proven to score above its teacher."""
    return row.recovery.interval is not None and row.recovery.interval.low > 1


def coverage(documents: int, planned: int) -> str:
    """Number of documents of an incomplete or partial cell: ``60 of 120``."""
    return f"{count(documents)} of {count(planned)}"


def interval_cells(name: str, interval: Interval | None) -> dict[str, float | str | None]:
    """CSV cells of an interval: the point and both ends, empty where there is no bound."""
    if interval is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    return {name: interval.point, f"{name}_low": bound(interval.low), f"{name}_high": bound(interval.high)}


def estimate_cells(name: str, estimate: Estimate | None) -> dict[str, float | str | None]:
    """CSV cells of an estimate: those of its interval, and the reason why it is undefined."""
    interval, why = (None, None) if estimate is None else (estimate.interval, estimate.why or None)
    return {**interval_cells(name, interval), f"{name}_undefined": why}
