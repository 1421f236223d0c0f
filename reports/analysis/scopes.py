"""Scopes: the benchmarks of an average, and their weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from evalsuite.foundation import content_hash
from evalsuite.foundation.taxonomy import CATEGORIES
from evalsuite.reports.analysis.bootstrap_sample import BootstrapSample, ResampledStratum
from evalsuite.reports.analysis.cells import Cell
from evalsuite.reports.analysis.replicates import Recipes
from evalsuite.reports.analysis.result_tensor import ResultTensor
from evalsuite.reports.run import Benchmark
from evalsuite.reports.statistics.bootstrap import Stratum

ALL = "all"
INFORMATIVE = "informative"
"""The benchmarks on which a teacher's scores say something: see `analysis/informative.py`."""


@dataclass(frozen=True, slots=True)
class Scope:
    """A weighted average over cells of one protocol."""

    name: str
    """`all`, `informative` or a category."""
    protocol: str
    cells: tuple[int, ...]
    """Indices into the cells of a `Pool`."""


class Pool:
    """The cells of one protocol whose scores can be averaged, each resampled once.

    Columns are all checkpoints in order, then the chance level.
    """

    def __init__(self, tensor: ResultTensor, protocol: str) -> None:
        """Resample the cells of `protocol` that are not perplexities and have two units or more."""
        self.tensor = tensor
        self.protocol = protocol
        self.recipes = Recipes(tensor)
        self.cells = [
            cell
            for cell in tensor.cells
            if cell.protocol == protocol and not cell.is_perplexity and cell.independent_units > 1
        ]
        self.chance = len(tensor.checkpoints)
        self.strata = [ResampledStratum(stratum_of(cell, tensor)) for cell in self.cells]
        self._samples: dict[tuple[int, ...], BootstrapSample] = {}

    def scopes(self) -> list[Scope]:
        """List the scope of all benchmarks, then one scope per category that has benchmarks."""
        return [self.scope(name, cells) for name, cells in scopes_of(self.cells).items()]

    def scope(self, name: str, cells: Sequence[int]) -> Scope:
        """Build the scope of the given cells."""
        return Scope(name, self.protocol, tuple(cells))

    def answered(self, scope: Scope, checkpoints: Sequence[int]) -> tuple[int, ...]:
        """Indices of the cells of `scope` that have all of `checkpoints`, those of equal requests once."""
        return self.once([i for i in scope.cells if set(checkpoints) <= set(self.cells[i].present)])

    def once(self, cells: Sequence[int]) -> tuple[int, ...]:
        """Those of `cells` that their average counts: of cells with the same requests one."""
        return tuple(cells[i] for i in self.tensor.counting.once([self.cells[i] for i in cells]))

    def counts_with(self, scope: Scope, checkpoints: Sequence[int]) -> dict[str, str]:
        """Benchmark of `scope` that counts with another one of it → that one, where all `checkpoints` are."""
        cells = [self.cells[i] for i in scope.cells if set(checkpoints) <= set(self.cells[i].present)]
        return self.tensor.counting.benchmarks(cells)

    def of(self, scope: Scope, checkpoints: Sequence[int]) -> BootstrapSample | None:
        """Return the sample of the cells of `scope` that have all of `checkpoints`; None without cells."""
        return self.sample(self.answered(scope, checkpoints))

    def sample(self, cells: tuple[int, ...]) -> BootstrapSample | None:
        """Return the sample of these cells, each request once, weighted as in every average; None without."""
        if cells and cells not in self._samples:
            counted = self.once(cells)
            weights = weights_of([self.cells[i] for i in counted])
            self._samples[cells] = BootstrapSample([self.strata[i] for i in counted], weights)
        return self._samples.get(cells)


def scopes_of(cells: Sequence[Cell], informative: Sequence[str] | None = None) -> dict[str, tuple[int, ...]]:
    """Scope → indices of its cells: `all`, `informative` and the categories, without empty ones.

    Args:
        cells: of one protocol.
        informative: names of the informative benchmarks under it; None leaves that scope out.
    """
    found = {ALL: tuple(range(len(cells)))}
    found[INFORMATIVE] = tuple(
        i for i, cell in enumerate(cells) if cell.benchmark.name in (informative or ())
    )
    for category in CATEGORIES:
        found[category] = tuple(i for i, cell in enumerate(cells) if cell.benchmark.category == category)
    return {name: members for name, members in found.items() if members}


class BenchmarkPart(Protocol):
    """A cell, or a planned one: what an average weighs and a rule selects."""

    @property
    def benchmark(self) -> Benchmark:
        """The benchmark."""

    @property
    def context(self) -> int | None:
        """Stated length in tokens; None without contexts."""


def weights_of(cells: Sequence[BenchmarkPart]) -> list[float]:
    """Weights that sum to 1: equal per benchmark or group, split down to benchmark and context.

    A group splits its weight as its benchmarks state (`group_weight`), otherwise evenly.
    """
    units: dict[str, dict[str, float]] = {}
    contexts: dict[str, int] = {}
    for cell in cells:
        benchmark = cell.benchmark
        contexts[benchmark.name] = contexts.get(benchmark.name, 0) + 1
        units.setdefault(benchmark.group or benchmark.name, {})[benchmark.name] = (
            benchmark.group_weight or 1.0
        )
    weights = []
    for cell in cells:
        members = units[cell.benchmark.group or cell.benchmark.name]
        share = members[cell.benchmark.name] / sum(members.values())
        weights.append(share / len(units) / contexts[cell.benchmark.name])
    return weights


def stratum_of(cell: Cell, tensor: ResultTensor) -> Stratum:
    """Stratum of a cell: all checkpoints (NaN if absent), then the chance level (NaN if unknown)."""
    count = len(tensor.checkpoints)
    rows = np.full((count + 1, len(cell.documents)), np.nan)
    rows[list(cell.present)] = cell.scores()
    if cell.chance is not None:
        rows[count] = cell.chance
    variance = np.zeros(count + 1)
    variance[list(cell.present)] = cell.seed_variance()
    return Stratum(
        rows.T,
        (*(checkpoint.weights_id for checkpoint in tensor.checkpoints), "chance"),
        content_hash([cell.key, cell.documents.tolist()]),
        cell.clusters,
        variance,
        np.full(count + 1, max(1, len(cell.seeds) - 1)),
    )
