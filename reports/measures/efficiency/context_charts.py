"""Figures of efficiency by context: one curve per model, a teacher with its students in one setting."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from evalsuite.reports import formatting
from evalsuite.reports.figures.axes import log_axis
from evalsuite.reports.figures.figure import Figure
from evalsuite.reports.figures.plots import Axis, Curve, Point
from evalsuite.reports.figures.small_multiples import small_multiples
from evalsuite.reports.measures.efficiency.comparison import (
    Quantity,
    by_context,
    pairings,
    ratios,
    setting,
)
from evalsuite.reports.records.efficiency import EfficiencyRow, Spread


def efficiency_charts(rows: Sequence[EfficiencyRow]) -> list[Figure]:
    """All figures of a teacher and its students in one setting; one without two contexts is left out."""
    where = setting(rows[0])
    # Models of one shape share the start of their names, which the caption then states once.
    starts = {row.label.partition(", ")[0] for row in rows}
    shared = starts.pop() if len(starts) == 1 and all(", " in row.label for row in rows) else ""
    if shared:
        rows = [replace(row, label=row.label.removeprefix(f"{shared}, ")) for row in rows]
    caption = ", ".join(part for part in (shared, where.engine, where.device, where.dtype) if part)
    return [
        *_speed(rows, "peak_throughput", "Peak decode throughput", caption),
        *_ratio(rows, caption),
        *_speed(rows, "decode", "Decode speed of one sequence", caption),
        *_plain(rows, "prefill", "Time to first token", "ms", 1.0, f"{caption}; one prompt"),
        *_plain(rows, "cache", "Cache per sequence", "MiB", 2**20, caption),
        *_plain(rows, "memory", "Peak memory of one sequence", "GiB", 2**30, f"{caption}; with weights"),
        *_energy(rows, caption),
    ]


def _chart(
    values: Mapping[str, dict[int, Spread]],
    title: str,
    unit: str,
    caption: str,
    *,
    is_log: bool = True,
    reference: float | None = None,
) -> list[Figure]:
    """Curves by context; both axes are logarithmic, so that linear growth is a straight line."""
    series = [
        Curve(
            label,
            tuple(
                Point(
                    context,
                    value.median,
                    value.low if value.repeats > 1 else None,
                    value.high if value.repeats > 1 else None,
                    label=f"{label} at {formatting.tokens(context)}: {value.median:,.4g} {unit}",
                )
                for context, value in found.items()
            ),
        )
        for label, found in values.items()
        if found
    ]
    contexts = [point.x for curve in series for point in curve.points]
    if len(set(contexts)) < 2:
        return []
    ticks = [(tick, formatting.tokens(round(tick))) for tick in log_axis(contexts).ticks]
    return small_multiples(
        series,
        Axis("context (tokens)", ticks=ticks, is_log=True),
        Axis(unit, is_log=is_log),
        title=f"{title} by context",
        caption=caption,
        reference=reference,
    )


def _by_label(
    rows: Sequence[EfficiencyRow], values: Callable[[str], dict[int, Spread]]
) -> dict[str, dict[int, Spread]]:
    names = {row.weights_id: row.label for row in rows}
    return {label: values(identifier) for identifier, label in names.items()}


def _plain(
    rows: Sequence[EfficiencyRow],
    quantity: Quantity,
    title: str,
    unit: str,
    scale: float,
    caption: str,
) -> list[Figure]:
    def values(identifier: str) -> dict[int, Spread]:
        return {c: _map(v, lambda x: x / scale) for c, v in by_context(rows, identifier, quantity).items()}

    return _chart(_by_label(rows, values), title, unit, f"{caption}. Lower is better.")


def _speed(rows: Sequence[EfficiencyRow], quantity: Quantity, title: str, caption: str) -> list[Figure]:
    """Tokens per second from milliseconds per token."""

    def values(identifier: str) -> dict[int, Spread]:
        found = by_context(rows, identifier, quantity)
        return {c: _map(v, lambda x: 1000 / x) for c, v in found.items() if v.low > 0}

    more = "; the best batch that memory holds" if quantity == "peak_throughput" else ""
    return _chart(_by_label(rows, values), title, "tokens/s", f"{caption}{more}. Higher is better.")


def _ratio(rows: Sequence[EfficiencyRow], caption: str) -> list[Figure]:
    """Peak throughput of students relative to their teachers."""
    values: dict[str, dict[int, Spread]] = {}
    for pair in pairings(rows):
        found = ratios(rows, pair.student.weights_id, pair.teacher.weights_id, "peak_throughput")
        values[pair.student.label] = {
            each.context: Spread(median=each.point, low=each.low, high=each.high, repeats=2) for each in found
        }
    return _chart(
        values,
        "Peak decode throughput relative to the teacher",
        "× teacher",
        f"{caption}. Dotted: as fast as the teacher.",
        reference=1.0,
    )


def _energy(rows: Sequence[EfficiencyRow], caption: str) -> list[Figure]:
    def values(identifier: str) -> dict[int, Spread]:
        found: dict[int, float] = {}
        for row in rows:
            if row.weights_id == identifier and row.kind == "decode" and row.joules:
                found[row.context] = min(row.joules, found.get(row.context, row.joules))
        return {
            c: Spread(median=1000 * v, low=1000 * v, high=1000 * v, repeats=1)
            for c, v in sorted(found.items())
        }

    return _chart(
        _by_label(rows, values),
        "Energy per generated token",
        "mJ",
        f"{caption}; the batch with the least. Lower is better.",
    )


def _map(value: Spread, function: Callable[[float], float]) -> Spread:
    """Apply a monotonic function to all three values; the ends stay in order."""
    low, high = sorted((function(value.low), function(value.high)))
    return Spread(median=function(value.median), low=low, high=high, repeats=value.repeats)
