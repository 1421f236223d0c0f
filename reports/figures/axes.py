"""Axes with round ticks and positions in percent, so that charts scale at a constant font size."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear (or logarithmic) axis from `low` to `high` with ticks."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def at(self, value: float) -> float:
        """Position in percent of the length, clipped to 0 … 100."""
        low, high, x = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        share = (x - low) / (high - low) if high > low else 0.5
        return round(100 * min(1.0, max(0.0, share)), 2)


def nice_axis(values: Sequence[float], *, include: Sequence[float] = (), steps: int = 5) -> Axis:
    """An axis of round numbers around `values` and `include`, with about `steps` steps."""
    every = [value for value in (*values, *include) if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(every), max(every)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / steps
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(s * scale for s in (1, 2, 2.5, 5, 10) if s * scale >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(i * step, 10) for i in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], ticks)


def log_axis(values: Sequence[float], most: int = 6) -> Axis:
    """A logarithmic axis around positive `values`, at most `most` of which become ticks."""
    distinct = sorted(set(values))
    ticks = distinct
    if len(distinct) > most:
        ticks = [distinct[round(i * (len(distinct) - 1) / (most - 1))] for i in range(most)]
    return Axis(distinct[0] / 1.2, distinct[-1] * 1.2, tuple(dict.fromkeys(ticks)), log=True)


def exact_axis(values: Sequence[float], most: int = 8) -> Axis:
    """A linear axis around a few integer `values`, such as layer counts, with ticks only at these."""
    distinct = sorted(set(values))
    margin = max(0.06 * (distinct[-1] - distinct[0]), 0.5)
    ticks = distinct
    if len(distinct) > most:
        ticks = [distinct[round(i * (len(distinct) - 1) / (most - 1))] for i in range(most)]
    return Axis(distinct[0] - margin, distinct[-1] + margin, tuple(dict.fromkeys(ticks)))
