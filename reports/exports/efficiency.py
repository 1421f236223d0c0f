"""Efficiency measurements as a text table and as CSV."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from evalsuite.reports import formatting
from evalsuite.reports.analysis.measures.efficiency import (
    QUANTITIES,
    Quantity,
    by_context,
    crossover,
    growth_exponent,
    pairings,
    ratios,
    setting,
    settings,
    synthetic_deviation,
)
from evalsuite.reports.records.efficiency import EfficiencyRow

LINEAR_FROM = 8192
"""Shortest context of a fit of growth: below, fixed costs dominate on a GPU."""


def efficiency_csv(rows: Sequence[EfficiencyRow]) -> str:
    """One row per measurement, unrounded."""
    found: list[dict[str, Any]] = []
    for row in rows:
        cells = row.model_dump(by_alias=True, exclude={"ttft_ms", "step_ms"})
        for name in ("ttft_ms", "step_ms"):
            spread = getattr(row, name)
            cells[name] = None if spread is None else spread.median
            cells[f"{name}_low"] = None if spread is None else spread.low
            cells[f"{name}_high"] = None if spread is None else spread.high
        cells["prefill_tokens_per_second"] = row.prefill_tokens_per_second
        cells["decode_tokens_per_second"] = row.decode_tokens_per_second
        found.append(cells)
    return _csv(found)


def crossovers_csv(rows: Sequence[EfficiencyRow], teachers: dict[str, str] | None = None) -> str:
    """One row per student, setting, quantity and context: its ratio to the teacher, and the crossover."""
    found: list[dict[str, Any]] = []
    for pair in pairings(rows, teachers):
        mine = [row for row in rows if setting(row) == pair.setting]
        for name in QUANTITIES:
            each = ratios(mine, pair.student.weights_id, pair.teacher.weights_id, name)
            cross = crossover(each, name)
            found += [
                {
                    "student": pair.student.label,
                    "teacher": pair.teacher.label,
                    "engine": pair.setting.engine,
                    "device": pair.setting.device,
                    "dtype": pair.setting.dtype,
                    "quantity": name,
                    "context": ratio.context,
                    "ratio": ratio.point,
                    "ratio_low": ratio.low,
                    "ratio_high": ratio.high,
                    "crossover": None if cross is None else cross.context,
                    "crossover_low": None if cross is None else cross.low,
                    "crossover_high": None if cross is None else cross.high,
                }
                for ratio in each
            ]
    return _csv(found)


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue()


def efficiency_text(rows: Sequence[EfficiencyRow]) -> str:
    """Text table of measurements, and what each student is better at."""
    lines: list[str] = []
    for where in settings(rows):
        mine = [row for row in rows if setting(row) == where]
        lines += [f"engine {where.engine}, {where.device}, {where.dtype}", _HEADER]
        lines += [_line(row) for row in mine]
        for weights_id, label in {row.weights_id: row.label for row in mine}.items():
            deviation = synthetic_deviation(mine, weights_id)
            if deviation is not None and deviation > 0.05:
                lines.append(
                    f"{label}: a decode step with a synthetic cache differs by {100 * deviation:.0f} % from "
                    "one after a real prefill"
                )
    names: list[Quantity] = list(QUANTITIES)
    for pair in pairings(rows):
        mine = [row for row in rows if setting(row) == pair.setting]
        facts = []
        for name in names:
            found = ratios(mine, pair.student.weights_id, pair.teacher.weights_id, name)
            cross = crossover(found, name)
            if cross is not None:
                facts.append(
                    f"  {QUANTITIES[name].title}: better {cross.text}; ×{found[-1].point:.3g} at the longest"
                )
        prefill = growth_exponent(by_context(mine, pair.student.weights_id, "prefill"), LINEAR_FROM)
        step = growth_exponent(by_context(mine, pair.student.weights_id, "decode"))
        if prefill is not None and step is not None:
            facts.append(f"  grows with context^{prefill:.2f} (prefill) and context^{step:.2f} (decode step)")
        if facts:
            lines += [f"{pair.student.label} against {pair.teacher.label}, {pair.setting.engine}:", *facts]
    return "\n".join(lines) if lines else "no measurements"


_HEADER = (
    f"{'model':<44}{'kind':>8}{'context':>9}{'batch':>7}{'first token ms':>16}{'decode tok/s':>14}"
    f"{'cache MiB':>11}{'peak GiB':>10}{'J/token':>9}"
)


def _line(row: EfficiencyRow) -> str:
    start = f"{row.label:<44}{row.kind:>8}{row.context:>9,}{row.batch:>7,}"
    if row.status != "ok":
        return f"{start}  {row.status.replace('_', ' ')}: {row.detail}"
    cells = [
        (16, None if row.ttft_ms is None else f"{row.ttft_ms.median:,.1f}"),
        (14, None if row.step_ms is None else f"{row.decode_tokens_per_second:,.0f}"),
        (11, None if row.cache_bytes is None else f"{row.cache_bytes / 2**20:,.2f}"),
        (10, None if row.peak_bytes is None else f"{row.peak_bytes / 2**30:,.1f}"),
        (9, None if row.joules is None else f"{row.joules:.3g}"),
    ]
    return start + "".join(
        f"{formatting.NOTHING if text is None else text:>{width}}" for width, text in cells
    )
