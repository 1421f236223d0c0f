"""Scopes: the benchmarks of an average, and their weights."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evalsuite.foundation import content_hash
from evalsuite.foundation.taxonomy import CATEGORIES
from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample
from evalsuite.reports.analysis.result_tensor import Cell, ResultTensor
from evalsuite.reports.statistics.bootstrap import DRAWS, Stratum, collapse

ALL = "all"


@dataclass(frozen=True, slots=True)
class Scope:
    """A weighted average over cells of one protocol."""

    name: str
    """`all`, or a category."""
    protocol: str
    cells: tuple[int, ...]
    """Indices into the cells of a `Pool`."""
    weights: tuple[float, ...]
    """One per cell, summing to 1: equal per benchmark (or group of benchmarks), then equal per context."""


class Pool:
    """The cells of one protocol whose scores can be averaged, resampled once for all averages.

    Columns are all checkpoints in order, then the chance level.
    """

    def __init__(self, tensor: ResultTensor, protocol: str, draws: int = DRAWS) -> None:
        """Resample the cells of `protocol` that are not perplexities and have at least two documents."""
        self.tensor = tensor
        self.protocol = protocol
        self.cells = [
            cell
            for cell in tensor.cells
            if cell.protocol == protocol and not cell.is_perplexity and len(cell.documents) > 1
        ]
        self.chance = len(tensor.checkpoints)
        self.strata = [stratum_of(cell, len(tensor.checkpoints)) for cell in self.cells]
        self.data: BootstrapSample | None = None
        if self.cells:
            seed = int(content_hash([cell.key for cell in self.cells]), 16)
            rng = np.random.default_rng(seed)
            self.data = BootstrapSample(self.strata, [1.0] * len(self.strata), rng, draws=draws)

    def scopes(self) -> list[Scope]:
        """List the scope of all benchmarks, then one scope per category that has benchmarks."""
        found = [self.scope(ALL, range(len(self.cells)))]
        for category in CATEGORIES:
            chosen = [i for i, cell in enumerate(self.cells) if cell.benchmark.category == category]
            found += [self.scope(category, chosen)] if chosen else []
        return found

    def scope(self, name: str, cells: Sequence[int]) -> Scope:
        """Build the scope of the given cells."""
        return Scope(name, self.protocol, tuple(cells), tuple(weights_of([self.cells[i] for i in cells])))

    def of(self, scope: Scope, checkpoints: Sequence[int]) -> BootstrapSample | None:
        """Return the sample of the cells of `scope` that have all of `checkpoints`; None without cells."""
        answered = [
            i for i in scope.cells if all(checkpoint in self.cells[i].present for checkpoint in checkpoints)
        ]
        if not answered or self.data is None:
            return None
        return self.data.only(answered, weights_of([self.cells[i] for i in answered]))


def weights_of(cells: Sequence[Cell]) -> list[float]:
    """Weights that sum to 1: equal per benchmark or group, split evenly down to benchmark and context."""
    units: dict[str, dict[str, int]] = {}
    for cell in cells:
        members = units.setdefault(cell.benchmark.group or cell.benchmark.name, {})
        members[cell.benchmark.name] = members.get(cell.benchmark.name, 0) + 1
    weights = []
    for cell in cells:
        members = units[cell.benchmark.group or cell.benchmark.name]
        weights.append(1 / len(units) / len(members) / members[cell.benchmark.name])
    return weights


def stratum_of(cell: Cell, checkpoints: int) -> Stratum:
    """Stratum of a cell: all checkpoints (NaN if absent), then the chance level (NaN if unknown)."""
    rows = np.full((checkpoints + 1, len(cell.documents)), np.nan)
    rows[list(cell.present)] = cell.scores()
    if cell.chance is not None:
        rows[checkpoints] = cell.chance
    variance = np.zeros(checkpoints + 1)
    if len(cell.seeds) > 1:
        variance[list(cell.present)] = cell.seed_variance()
    return collapse(rows.T, variance)
