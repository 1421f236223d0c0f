"""The sweep: requests at every context, and the largest decode batches at some of them.

A point that runs out of memory is recorded as such, and the sweep goes on.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from evalsuite.foundation import ConfigError, EvalsuiteError
from evalsuite.foundation.efficiency import EfficiencyRow, Key, Status
from evalsuite.models.benchmark.points import Point
from evalsuite.models.benchmark.subject import Benchmark

CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
PEAK_CONTEXTS = (2048, 8192, 32768, 131072)
CPU_CONTEXTS = (128, 256, 512)
"""What a CPU measures in minutes."""
LONG = 32768
"""Longest context that is measured with all repeats; one beyond."""
FIRST_FRACTION = 16
"""The batch sweep starts at this fraction of the sequences that memory should hold."""
REFINEMENTS = 1
"""Batches between the largest that fits and the smallest that does not."""
TYPICAL_BATCHES = 6
"""Decode batches per context, for estimates."""
CHECK_CONTEXT = 2048
"""Context at which a synthetic cache is compared with a real prefill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What to measure of every model."""

    contexts: tuple[int, ...] = CONTEXTS
    batches: tuple[int, ...] = (1,)
    """Prompts per request."""
    peak_contexts: tuple[int, ...] = PEAK_CONTEXTS
    """Contexts at which decode batches grow until memory ends; empty for none."""
    repeats: int = 3
    most_sequences: int | None = None
    """Upper limit of a decode batch; None for memory's."""

    def requests(self) -> list[Point]:
        """The real requests, short contexts first."""
        return [
            Point(
                kind="request",
                context=context,
                batch=batch,
                repeats=self.repeats if context <= LONG else 1,
            )
            for context in sorted(set(self.contexts))
            for batch in sorted(set(self.batches))
        ]

    def all_points(self) -> list[Point]:
        """The requests, and decode batches of one sequence in place of those that memory will decide."""
        batches = [Point(kind="decode", context=each) for each in sorted(set(self.peak_contexts))]
        return self.requests() + batches * TYPICAL_BATCHES


def run_sweep(
    benchmark: Benchmark,
    sweep: Sweep,
    stored: dict[Key, EfficiencyRow],
    record: Callable[[EfficiencyRow], None],
) -> Iterator[EfficiencyRow]:
    """Measure all points of a model, and yield the record of each.

    Args:
        benchmark: measures the model.
        sweep: the points.
        stored: measurements that exist; they are yielded and not repeated.
        record: is called with each new measurement.
    """

    def measured(point: Point) -> EfficiencyRow:
        key = benchmark.subject.row(point).key
        found = stored.get(key)
        if found is None:
            found = stored[key] = attempt(benchmark, point)
            record(found)
        return found

    for point in sweep.requests():
        yield measured(point)
    if "decode" in benchmark.kinds and sweep.peak_contexts:
        check = min(sweep.contexts, key=lambda context: abs(context - CHECK_CONTEXT))
        yield measured(Point(kind="decode", context=check))
        for context in sorted(set(sweep.peak_contexts)):
            yield from _grow(benchmark, context, measured, sweep.most_sequences)


def _grow(
    benchmark: Benchmark, context: int, measured: Callable[[Point], EfficiencyRow], limit: int | None
) -> Iterator[EfficiencyRow]:
    """Double the batch until it does not fit, then try between; never split a batch."""
    expected = benchmark.most_sequences(context)
    # The power of two at or below that fraction.
    batch = 1 << max(0, (min(expected, limit or expected) // FIRST_FRACTION).bit_length() - 1)
    fits, fails = 0, 0
    while not (fits and fails) and batch >= 1 and (limit is None or batch <= limit):
        found = measured(Point(kind="decode", context=context, batch=batch))
        yield found
        if found.status == "ok":
            fits, batch = batch, 2 * batch
        else:
            fails, batch = batch, batch // 2
    for _ in range(REFINEMENTS if fits and fails else 0):
        middle = (fits + fails) // 2
        if fits < middle:
            found = measured(Point(kind="decode", context=context, batch=middle))
            yield found
            fits, fails = (middle, fails) if found.status == "ok" else (fits, middle)


def attempt(benchmark: Benchmark, point: Point) -> EfficiencyRow:
    """Measure a point, and turn what prevents it into a record."""
    outcome: tuple[Status, str]
    try:
        return benchmark.measure(point)
    except torch.OutOfMemoryError as error:
        outcome = "out_of_memory", _first_line(error)
    except ConfigError as error:
        outcome = "unsupported", _first_line(error)
    except EvalsuiteError:
        raise
    except RuntimeError as error:
        # Kernels refuse sizes in their own ways, such as a grid beyond the device's limits.
        outcome = "failed", _first_line(error)
    finally:
        benchmark.release()
    return benchmark.subject.row(point, *outcome)


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).split("\n")[0][:300]
