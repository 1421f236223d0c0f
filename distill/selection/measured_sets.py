"""Measurements of sets of softmax layers, or of other sets, for searches without training."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from evalsuite.distill.selection.context import ProgressLog, SelectionContext
from evalsuite.distill.selection.result import Snapshot
from evalsuite.foundation import progress


class MeasuredSets:
    """Measurements of hybrids by their softmax layers, each made once, logged, and shared by all processes.

    Args:
        name, about: name of the progress log, and settings besides the recipe that determine the values.
        columns: names of the values.
        measure: softmax layers → values.
        unit: what one set is, for the progress bar.
        key: what the sets consist of, in the progress log.
        cost: row of a set → numbers; the lowest is best. Needed by `search` only.
    """

    def __init__(
        self,
        context: SelectionContext,
        name: str,
        about: dict[str, Any],
        columns: Sequence[str],
        measure: Callable[[Collection[int]], Sequence[float]],
        *,
        unit: str,
        key: str = "layers",
        cost: Callable[[dict[str, Any]], tuple[float, ...]] = lambda row: (),
    ) -> None:
        self.about = about
        self._context, self._columns, self._measure_one = context, columns, measure
        self._cost, self._unit, self._key = cost, unit, key
        self.progress_log: ProgressLog = context.progress_log(name, about)
        self._known = {frozenset(row[key]): row for row in self.progress_log.rows}

    def __len__(self) -> int:
        return len(self._known)

    def __call__(self, softmax: Collection[int]) -> dict[str, Any]:
        """A set and its values."""
        key = frozenset(softmax)
        if key not in self._known:
            self._measure([key])
        return self._known[key]

    def all(self, sets: Sequence[frozenset[int]], what: str) -> list[dict[str, Any]]:
        """The rows of several sets, which the processes share."""
        new = [each for each in sets if each not in self._known]
        world = self._context.process_group.world_size
        with progress(total=len(sets), what=what, unit=self._unit, quiet=self._context.quiet) as bar:
            bar.update(len(sets) - len(new))
            for start in range(0, len(new), world):
                self._measure(new[start : start + world])
                bar.update(len(new[start : start + world]))
        return [self._known[each] for each in sets]

    def best(self, candidates: Sequence[frozenset[int]], width: int, what: str) -> list[frozenset[int]]:
        """Return the `width` candidates of the lowest cost, best first; ties are broken by their layers."""
        costs = dict(zip(candidates, map(self._cost, self.all(candidates, what)), strict=True))
        return sorted(costs, key=lambda each: (costs[each], sorted(each)))[:width]

    def search(
        self, start: Collection[int], k: int, width: int = 1
    ) -> tuple[list[frozenset[int]], list[Snapshot]]:
        """Swap one layer after the other, keeping the best `width` sets of each depth; 1 is a greedy search.

        Args:
            start: all layers, which become linear one by one, or none, which are restored.
            k: size of the sets in the end.

        Returns:
            The best sets of `k` layers, best first, and the best set of each depth.
        """
        start = frozenset(start)
        layers, depth = range(self._context.layers), abs(k - len(start))
        beam, history = [start], []
        for number in range(1, depth + 1):
            # Layers that are not swapped yet.
            swaps = {each ^ {i} for each in beam for i in layers if (i in each) == (i in start)}
            beam = self.best(sorted(swaps, key=sorted), width, f"depth {number} of {depth}")
            history.append(Snapshot(step=number, tokens=0, layers=tuple(sorted(beam[0]))))
        return beam, history

    def _measure(self, sets: Sequence[frozenset[int]]) -> None:
        """Measure up to one set per process and share the values."""
        group = self._context.process_group
        values = torch.zeros(len(sets), len(self._columns), dtype=torch.float64, device=self._context.device)
        if group.rank < len(sets):
            values[group.rank] = torch.tensor(self._measure_one(sets[group.rank]), dtype=torch.float64)
        group.all_reduce(values)
        for key, found in zip(sets, values.tolist(), strict=True):
            self._known[key] = {self._key: sorted(key), **dict(zip(self._columns, found, strict=True))}
            self.progress_log.append(self._known[key])
