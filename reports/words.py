"""How numbers and findings are said, alike on the page, in Markdown and in the gate."""

from evalsuite.reports.analysis.rows import AverageRow, GapRow
from evalsuite.reports.analysis.scopes import ALL
from evalsuite.reports.report import Report
from evalsuite.reports.resampled import Estimate
from evalsuite.reports.statistics.interval import Interval

PROTOCOL_WORDS = {"loglikelihood": "ranked", "generation": "written"}
"""What an answer is under a protocol: ranked by log-likelihood, or written."""

CATEGORY_TITLES = {
    "all": "All",
    "knowledge": "Knowledge",
    "common_sense": "Common sense",
    "reasoning": "Reasoning",
    "instruction_following": "Instruction following",
    "recall": "Recall",
    "language_modeling": "Language modelling",
}

OUTCOME_TITLES = {
    "ok": "answered",
    "extraction_failed": "no answer found",
    "truncated": "cut off",
    "looped": "looped",
    "error": "error",
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
    text = f"{abs(value):.{digits}f}"
    return text if value >= 0 or float(text) == 0 else f"{MINUS}{text}"


def percent(value: float | None, digits: int = 1) -> str:
    """A fraction as a percentage without its sign; a dash for None."""
    return NOTHING if value is None else plain(100 * value, digits)


def span(interval: Interval, scale: float = 100, digits: int = 1) -> str:
    """The two ends: ``92.8 to 95.6``."""
    return f"{plain(scale * interval.low, digits)} to {plain(scale * interval.high, digits)}"


def estimate(value: Estimate, digits: int = 1) -> str:
    """``94.2 (92.8 to 95.6)`` in per cent, or a dash."""
    if value.interval is None:
        return NOTHING
    return f"{percent(value.interval.point, digits)} ({span(value.interval, 100, digits)})"


def rank(row: AverageRow) -> str:
    """``1``, or ``1–3`` where the order of the three is not proven; empty without a rank."""
    if row.rank is None:
        return ""
    if row.rank_low == row.rank_high:
        return str(row.rank_low)
    return f"{row.rank_low}–{row.rank_high}"


def count(number: int) -> str:
    """A whole number with thin separators: ``33,412``."""
    return f"{number:,}"


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
    """The ranked student with the highest recovery under log-likelihood (else generation).

    Those proven to score above their teacher come last: they have learned more than they have kept.
    """
    for protocol in report.protocols:
        rows = [
            row
            for student in report.students()
            if (row := report.average(student, protocol)) is not None and row.rank is not None
        ]
        if rows:
            return max(rows, key=lambda row: (not beyond(row), row.recovery.point or 0.0))
    return None


def beyond(row: AverageRow) -> bool:
    """Whether a student is proven to score above its teacher."""
    return row.recovery.interval is not None and row.recovery.interval.low > 1


def headline(report: Report) -> str:
    """One sentence that says what happened, and no more than what is proven."""
    best = best_student(report)
    if best is None:
        return _without_recovery(report)
    label = report.subjects[best.subject].label
    how = "when its answers are ranked" if best.protocol == "loglikelihood" else "when it writes its answers"
    recovered = f"{label} recovers {percent(best.recovery.point)} % of its teacher {how}"
    row = report.gap(best.subject)
    if best.protocol != "loglikelihood" or row is None:
        return f"{recovered}."
    if row.floored and row.gap.low <= 0:
        # The teacher has nothing to lose there; what else is written says more.
        least = _least_kept(report, best.subject)
        if least is not None:
            kind = CATEGORY_TITLES[least.scope].lower()
            return (
                f"{recovered}; when it writes, it keeps least of {kind}: {percent(least.recovery.point)} %."
            )
        written = report.average(best.subject, "generation")
        if written is not None and written.recovery.point is not None:
            return f"{recovered} and {percent(written.recovery.point)} % when it writes them."
    return f"{recovered}; {gap_clause(row)}."


def _least_kept(report: Report, subject: int) -> AverageRow | None:
    """The category of which a student keeps least, of those that are written and not ranked."""
    both = {row.benchmark for row in report.gaps}
    rows = [
        row
        for row in report.averages
        if (row.subject, row.protocol) == (subject, "generation")
        and row.scope != ALL
        and row.recovery.point is not None
        and not row.missing
        and not both & set(row.benchmarks)
    ]
    return min(rows, key=lambda row: row.recovery.point or 0.0, default=None)


def gap_clause(row: GapRow) -> str:
    """What writing costs beyond ranking."""
    points = f"{100 * abs(row.gap.point):.1f} points"
    if row.gap.low > 0:
        return f"it loses {points} more when it must write them"
    if row.gap.high < 0:
        return f"it loses {points} less when it writes them"
    return "no further loss is proven when it must write them"


def _best_in_part(report: Report) -> str:
    """The best of the students that lack a benchmark of their teacher; empty if none has a recovery."""
    for protocol in report.protocols:
        rows = [row for s in report.students() if (row := report.average(s, protocol)) is not None]
        rows = [row for row in rows if row.recovery.point is not None]
        if rows:
            best = max(rows, key=lambda row: row.recovery.point or 0.0)
            asked = len(best.benchmarks) + len(best.missing)
            how = (
                "when its answers are ranked" if protocol == "loglikelihood" else "when it writes its answers"
            )
            label = report.subjects[best.subject].label
            over = f"{len(best.benchmarks)} of {asked} benchmarks; it has not answered the others"
            return f"{label} recovers {percent(best.recovery.point)} % of its teacher {how}, over {over}."
    return ""


def _without_recovery(report: Report) -> str:
    subjects = f"{len(report.subjects)} checkpoint{'s' if len(report.subjects) != 1 else ''}"
    if not report.teachers:
        return f"Scores of {subjects}; without a teacher there is no recovery."
    if not report.students():
        return "Scores of the teacher; no student has been compared with it yet."
    if part := _best_in_part(report):
        return part
    return f"Scores of {subjects}; no recovery is defined."
